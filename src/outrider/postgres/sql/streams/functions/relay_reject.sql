-- relay_reject: record that the broker rejected one event for its content. It is tried again after p_delay seconds, and everything
-- behind it waits; after p_most rejections it becomes a dead letter, if p_bury.
-- Runs in its own transaction, after that of the take was rolled back. If another relay has sent the event meanwhile, or somebody
-- has withdrawn it, nothing is written.
-- Locks:  the cursor row, waiting.
-- Returns how often it was rejected, and whether it is a dead letter now.
create or replace function /*schema*/relay_reject(
    p_subscription text, p_seq bigint, p_code text, p_message text, p_worker text, p_delay interval, p_most integer,
    p_bury boolean, out attempts integer, out buried boolean
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '10s'
as $$
#variable_conflict use_column
declare
    cur /*schema*/cursor;
begin
    perform /*schema*/relay_only(p_subscription);
    buried := false;
    select c.* into strict cur from /*schema*/cursor as c
    where c.subscription = p_subscription and c.generation = 0 and c.partition = 0 for update;
    if not exists (select from /*schema*/delivery as d
                   where d.subscription = p_subscription and d.seq = p_seq and d.status = 'pending') and exists (
        select from /*schema*/outbox as o
        where o.seq = p_seq
          and (exists (select from /*schema*/withdrawal as w where w.seq = o.seq)
               or o.seq <= cur.seq
                  and not coalesce(o.tx = any (cur.owing) and o.seq > cur.owed_after, false)
                  and not (o.seq > cur.floor and o.tx < cur.horizon and not pg_visible_in_snapshot(o.tx, cur.inflight)))) then
        attempts := 0;
        return;
    end if;
    insert into /*schema*/delivery as d (
        subscription, partition, seq, event_id, event_type, status, head, reached, run_at, attempts, last_error_code, last_error,
        first_failed_at, failure_history)
    select p_subscription, 0, o.seq, o.id, o.event_type, 'pending', true, false, clock_timestamp() + p_delay, 1,
           p_code, p_message, clock_timestamp(),
           jsonb_build_array(/*schema*/failure(1, 1, p_code, p_message, p_worker))
    from /*schema*/outbox as o where o.seq = p_seq
    on conflict (subscription, seq) do update
    set attempts = d.attempts + 1, run_at = excluded.run_at, last_error_code = p_code, last_error = p_message,
        first_failed_at = coalesce(d.first_failed_at, excluded.first_failed_at),
        failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                else d.failure_history end)
                          || /*schema*/failure(d.cycle, d.attempts + 1, p_code, p_message, p_worker)
    where d.status = 'pending'
    returning d.attempts into attempts;
    if attempts >= p_most and p_bury then
        update /*schema*/delivery as d
        set status = 'failed', head = false, buried_at = clock_timestamp()
        where d.subscription = p_subscription and d.seq = p_seq and d.status = 'pending';
        buried := found;
    end if;
end
$$;
