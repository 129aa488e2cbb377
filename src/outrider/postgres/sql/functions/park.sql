-- park: events that failed wait for their retry, or are buried; their batch has been rolled back. A transaction of its own,
-- so that the attempt counts at once, whoever takes the partition next.
--
-- p_failed: [{seq, attempt, delay, code, message, counted, dead}]. What another session has handled, or counted as this very
-- attempt, in the meantime is left alone: the same call may come twice. Returns the numbers of those that were not.
-- p_cursor: the cursor of their partition; its rollback is excused, which means that it was no death of a worker.
-- p_armed: a suspect that had been counted before it ran, and that did not kill its worker, or did not run at all.
-- Locks:  the cursor row, waiting: until then another session may be handling the very same events.
create or replace function /*schema*/park(
    p_subscription text, p_cursor bigint, p_failed jsonb, p_armed bigint default null, p_worker text default null
) returns bigint[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
    set enable_seqscan = off
    set jit = off
as $$
#variable_conflict use_column
declare
    cur   /*schema*/cursor;
    sub   /*schema*/subscription;
    lines text[];
    told  bigint[];
begin
    if p_armed is not null then
        update /*schema*/delivery as d set crashes = d.crashes - 1, run_at = now()
        where d.id = p_armed and d.status = 'pending' and d.suspect and d.crashes > 0;
    end if;
    if p_cursor is not null then
        perform nextval(format('/*schema*/excused_%s', p_cursor)::regclass);
    end if;
    if p_failed is null then
        return '{}';
    end if;
    select c.* into strict cur from /*schema*/cursor as c where c.id = p_cursor for update;
    select s.* into strict sub from /*schema*/subscription as s where s.name = p_subscription;

    with failed as materialized (
        select f.* from jsonb_to_recordset(p_failed) as f (
            seq bigint, attempt integer, delay double precision, code text, message text, counted boolean, dead boolean)
    ),
    again as (
        update /*schema*/delivery as d
        set attempts        = d.attempts + f.counted::integer,
            run_at          = now() + f.delay * interval '1 second',
            status          = case when f.dead then 'failed' else d.status end,
            head            = d.head and not f.dead,
            suspect         = false,
            crashes         = 0,
            last_error_code = f.code,
            last_error      = f.message,
            first_failed_at = coalesce(d.first_failed_at, now()),
            -- The newest say most.
            failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                    else d.failure_history end)
                              || /*schema*/failure(d.cycle, d.attempts + f.counted::integer, f.code, f.message, p_worker)
        from failed as f
        where d.subscription = p_subscription and d.seq = f.seq and d.status = 'pending' and d.attempts = f.attempt - 1
        returning d.seq, d.ordering_key
    ),
    fresh as (
        insert into /*schema*/delivery (
            subscription, generation, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at,
            attempts, last_error_code, last_error, first_failed_at, failure_history)
        select p_subscription, cur.generation,
               coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1), o.seq, o.id, o.event_type,
               lined.line, case when f.dead then 'failed' else 'pending' end, not f.dead and lined.line is null, false,
               now() + f.delay * interval '1 second', f.counted::integer, f.code, f.message, now(),
               jsonb_build_array(/*schema*/failure(1, f.counted::integer, f.code, f.message, p_worker))
        from failed as f
        cross join lateral (select o.* from /*schema*/outbox as o where o.seq = f.seq limit 1) as o
        cross join lateral (
            select case sub.ordering when 'total' then '' when 'key' then o.aggregate_id end as line) as lined
        where f.attempt = 1
          and not exists (
              select from /*schema*/event_handled as h
              where h.handler_name = p_subscription
                and h.idempotency_key = coalesce(o.event_type || ':' || o.idempotency_key, o.id::text))
        on conflict (subscription, seq) do nothing
        returning seq, ordering_key
    ),
    parked as (
        select again.seq, again.ordering_key from again union all select fresh.seq, fresh.ordering_key from fresh
    )
    select coalesce(array_agg(parked.seq), '{}'),
           array_agg(distinct parked.ordering_key) filter (where parked.ordering_key is not null)
    into told, lines from parked;
    perform /*schema*/promote(p_subscription, lines);
    return told;
end
$$;
