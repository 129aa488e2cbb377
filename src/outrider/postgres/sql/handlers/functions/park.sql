-- park: write failed events into delivery, to be retried or as dead letters, after their batch was rolled back.
-- It runs in its own transaction, so that the attempt counts at once, whoever takes the partition next.
--
-- p_failed: [{seq, attempt, delay, code, message, traceback, counted, dead, batch, trip, probe, longest, spared}]
--     trip: the handler's breaker opens after this many failures in a row, for `probe` seconds, then twice as long each time, up
--     to `longest` seconds. spared: the event was the breaker's probe; others are tried before it.
-- p_cursor: the cursor of their partition. Its rollback is excused: it was no death of a worker.
-- p_armed: a suspect that was counted before it ran, and that did not kill its worker or did not run.
-- Locks:  the cursor row, waiting: until then another session may be handling the same events.
-- Returns the seqs that it wrote. It skips events that another session has handled meanwhile, or whose attempt is counted already;
--         so the same call may come twice.
create or replace function /*schema*/park(
    p_subscription text, p_cursor bigint, p_failed jsonb, p_armed bigint default null, p_worker text default null
) returns bigint[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set jit = off
as $$
#variable_conflict use_column
declare
    cur   /*schema*/cursor;
    sub   /*schema*/subscription;
    place record;
    lines text[];
    told  bigint[];
begin
    perform /*schema*/sees_all();
    -- Before the wait for the cursor: others that take it meanwhile, fail and wait too would look like deaths.
    perform /*schema*/count_take(p_cursor, 0, 1);
    if p_failed is not null then
        -- Find the cursor that has the event now: its generation may have been opened or folded, or the partitions doubled.
        loop
            select s.* into strict sub from /*schema*/subscription as s where s.name = p_subscription;
            select coalesce(d.generation, own.generation, 0) as generation,
                   coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1) as partition
            into strict place
            from /*schema*/outbox as o
            left join /*schema*/delivery as d on d.subscription = p_subscription and d.seq = o.seq
            left join lateral (select c.generation from /*schema*/cursor as c
                               where c.subscription = p_subscription and c.generation = o.generation limit 1) as own on true
            where o.seq = (p_failed -> 0 ->> 'seq')::bigint;
            exit when (cur.generation, cur.partition) = (place.generation, place.partition);
            select c.* into cur from /*schema*/cursor as c
            where c.subscription = p_subscription and c.generation = place.generation and c.partition = place.partition
            for update;
        end loop;
    end if;
    -- After the cursor's lock: everybody locks the two in this order.
    if p_armed is not null then
        update /*schema*/delivery as d set crashes = d.crashes - 1, run_at = now()
        where d.id = p_armed and d.status = 'pending' and d.suspect and d.crashes > 0;
    end if;
    if p_failed is null then
        return '{}';
    end if;

    with failed as materialized (
        select f.* from jsonb_to_recordset(p_failed) as f (
            seq bigint, attempt integer, delay double precision, code text, message text, traceback text, counted boolean,
            dead boolean, batch text)
    ),
    again as (
        update /*schema*/delivery as d
        set attempts        = d.attempts + f.counted::integer,
            run_at          = now() + f.delay * interval '1 second',
            status          = case when f.dead then 'failed' else d.status end,
            head            = d.head and not f.dead,
            suspect         = false,
            crashes         = 0,
            buried_at       = case when f.dead then now() end,
            last_error_code = f.code,
            last_error      = f.message,
            last_traceback  = left(f.traceback, 4096),
            first_failed_at = coalesce(d.first_failed_at, now()),
            -- Keep the newest 100.
            failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                    else d.failure_history end)
                              || /*schema*/failure(d.cycle, d.attempts + f.counted::integer, f.code, f.message, p_worker, f.batch)
        from failed as f
        where d.subscription = p_subscription and d.seq = f.seq and d.status = 'pending' and d.attempts = f.attempt - 1
          and (f.batch is null or not d.failure_history @> jsonb_build_array(
                   jsonb_build_object('batch', f.batch, 'worker', p_worker)))
        returning d.seq, d.ordering_key
    ),
    fresh as (
        insert into /*schema*/delivery (
            subscription, generation, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at,
            attempts, buried_at, last_error_code, last_error, last_traceback, first_failed_at, failure_history, workspace_id)
        select p_subscription, cur.generation,
               coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1), o.seq, o.id, o.event_type,
               lined.line, case when f.dead then 'failed' else 'pending' end, not f.dead and lined.line is null, false,
               now() + f.delay * interval '1 second', f.counted::integer,
               case when f.dead then now() end, f.code, f.message, left(f.traceback, 4096), now(),
               jsonb_build_array(/*schema*/failure(1, f.counted::integer, f.code, f.message, p_worker, f.batch)), o.workspace_id
        from failed as f
        cross join lateral (select o.* from /*schema*/outbox as o where o.seq = f.seq limit 1) as o
        cross join lateral (
            select /*schema*/ordering_key(sub.ordering, o.workspace_id, o.aggregate_id) as line) as lined
        where f.attempt = 1
          and not exists (
              select from /*schema*/event_handled as h
              where h.handler_name = p_subscription
                and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id))
          -- Not if it was withdrawn, or its type removed, while its batch held the cursor: nobody will read it again.
          and not exists (select from /*schema*/withdrawal as w where w.seq = f.seq)
          and /*schema*/concerns(o, sub)
        on conflict (subscription, seq) do nothing
        returning seq, ordering_key
    ),
    parked as (
        select again.seq, again.ordering_key from again union all select fresh.seq, fresh.ordering_key from fresh
    )
    select coalesce(array_agg(parked.seq), '{}'),
           array_agg(distinct parked.ordering_key) filter (where parked.ordering_key is not null)
    into told, lines from parked;
    perform /*schema*/promote(p_subscription, cur.generation, lines);
    with broken as (
        update /*schema*/cursor as c
        set failures   = c.failures + 1,
            open_until = case when c.failures + 1 >= f.trip then
                now() + interval '1 second' * least(f.probe * 2 ^ least(c.failures + 1 - f.trip, 30), f.longest) end
        from jsonb_to_recordset(p_failed) as f (
            seq bigint, trip integer, probe double precision, longest double precision, spared boolean)
        where c.id = cur.id and f.trip is not null and f.seq = any (told)
        returning f.seq, f.spared, c.open_until + interval '1 second' * f.probe as later
    )
    update /*schema*/delivery as d set run_at = broken.later
    from broken where broken.spared and d.subscription = p_subscription and d.seq = broken.seq;
    return told;
end
$$;
