-- relay_rewind: move a relay back to a mark, because a stream has lost its end. Events read since then will be read again.
-- In the same transaction, those that are still in the streams must be noted with relay_ahead, and the ends of the streams stored
-- with relay_settle. The caller holds the cursor's lock.
create or replace function /*schema*/relay_rewind(p_subscription text, p_at timestamptz) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
as $$
declare
    back /*schema*/cursor;
begin
    perform /*schema*/relay_only(p_subscription);
    select (jsonb_populate_record(null::/*schema*/cursor, m.cursor)).* into strict back
    from /*schema*/stream_mark as m where m.subscription = p_subscription and m.at = p_at;
    update /*schema*/cursor as c
    set seq = back.seq, floor = back.floor, inflight = back.inflight, horizon = back.horizon, owing = back.owing,
        owed_after = back.owed_after, mark_seq = back.mark_seq, mark_xid = back.mark_xid, cluster = back.cluster
    where c.subscription = p_subscription and c.generation = 0 and c.partition = 0;
    with again as (
        delete from /*schema*/stream_replayed as r where r.subscription = p_subscription and r.at > p_at returning r.*
    )
    insert into /*schema*/delivery (
        subscription, partition, seq, event_id, event_type, status, head, reached, run_at, payload, cycle, failure_history)
    select distinct on (again.seq) again.subscription, 0, again.seq, again.event_id, again.event_type, 'pending', true, true,
           clock_timestamp(), again.payload, again.cycle, again.failure_history
    from again order by again.seq, again.at desc
    on conflict (subscription, seq) do nothing;
    -- The cursor will pass these again; the rule is that of the view event_status.
    update /*schema*/delivery as d set reached = false
    from /*schema*/outbox as o
    where d.subscription = p_subscription and d.reached and o.seq = d.seq
      and not (o.seq <= back.seq
               and not coalesce(o.tx = any (back.owing) and o.seq > back.owed_after, false)
               and not (o.seq > back.floor and o.tx < back.horizon and not pg_visible_in_snapshot(o.tx, back.inflight)));
    delete from /*schema*/stream_mark as m where m.subscription = p_subscription and m.at > p_at;
    delete from /*schema*/stream_ahead as a where a.subscription = p_subscription;
end
$$;
