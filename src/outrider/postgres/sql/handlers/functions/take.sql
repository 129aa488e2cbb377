-- take: the next batch of a subscription, in the transaction in which it is handled. Only COMMIT makes it final.
-- lock_cursor finds and locks a partition, and read gets the next events of its log. This function adds what handlers need:
--   receipts   are inserted here, ordered by key so that two batches cannot deadlock. Only events with a new receipt are returned.
--              An event without an idempotency key has its id as its key, which no other event has: a plain insert suffices (ON
--              CONFLICT costs 2.6 us more, of 9.7 us). If such a receipt exists, somebody has moved the cursor back: the take
--              fails with a unique violation, and the worker takes again with p_careful.
--   retries    parked events that are due come before the log (take_parked). When the log is read up to an event that is already
--              parked or a dead letter, the event is skipped; later events of its ordering key are parked behind it (divert).
--   deaths     are takes that were rolled back without an excuse (count_deaths). After three, the batch is parked as suspect. More
--              than five in a row are no deaths: after a crash of the server a sequence skips up to 32 numbers. The take is counted
--              at the end, when nothing of ours can fail any more: a full disk is no death.
--   breaker    while it is open, nothing is taken; then one event, the probe.
-- For readers, relays and routes, take is lock_cursor, read and the events.
--
-- Use:    in a READ COMMITTED transaction that has not written anything yet. Without p_partition: any that has something to read.
-- Locks:  the cursor row: the lease of the partition, held until the transaction ends.
-- Bound:  p_limit events, p_scan log positions, and batch_bytes of payloads, which the last event may exceed. A payload that cannot
--         be read is returned as an empty text (as_text).
-- p_generation: 0 reads the events of all generations without own cursors; another number only that generation's.
-- p_knows: the event types that the worker's code knows.
-- p_excused: excused rollbacks that the caller could not report (park).
-- p_armed: the suspect that was counted and may run now. p_alone: nothing else runs in the caller's process.
--
-- Returns a first row without an event, then the events. Its `outcome`:
--   idle     nothing to read: no transaction id used, nothing written; due_in = seconds until the next parked event
--   busy     other sessions hold what there is to read
--   more     there is more to read at once, take again after the commit (the batch may be empty)
--   done     everything that was published before the call has been read in this partition. For a handler: in the only
--            partition, and nothing is parked; so there is no reason to take again before the next event is published
--   suspect  a suspect is due: commit, then take again with p_alone
--   armed    a suspect was counted: commit, then take again with p_armed = delivery
--   waiting  order = total, and its parked event is not due
--   probe    the breaker was open: at most one event; its commit closes the breaker
--   open     the breaker is open; due_in = for how many seconds at most
--   paused   an operator paused it; nothing was read
--   unknown  the subscription wants types that are not in p_knows; nothing was read
create or replace function /*schema*/take(
    p_subscription text, p_partition integer default null, p_limit integer default 500, p_scan integer default 10000,
    p_generation bigint default 0, p_knows text[] default null, p_armed bigint default null, p_excused integer default 0,
    p_worker text default null, p_careful boolean default false, p_alone boolean default false
) returns setof /*schema*/taken
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off         -- the planner must never trade the ordered index for a sort of the backlog
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan   -- planned once a session; segments are pruned when it runs
    set jit = off
as $$
#variable_conflict use_column
declare
    lock       record;
    counted    record;
    reading    record;
    cur        /*schema*/cursor;
    sub        /*schema*/subscription;
    head       /*schema*/taken;
    first_seq  bigint;
    seqs       bigint[];
    returned   bigint;
    settles    boolean;
    suspicious boolean := false;
    parked     boolean;
    diverting  boolean := false;
begin
    perform /*schema*/sees_all();
    if (p_limit >= 1 and p_scan >= p_limit) is not true then
        raise 'take needs 1 <= limit <= scan, got limit % and scan %', p_limit, p_scan using errcode = 'OR001';
    end if;
    p_excused := least(greatest(p_excused, 0), 1000);  -- as many as count_take counts at once

    lock := /*schema*/lock_cursor(p_subscription, p_partition, p_generation, p_armed);
    cur := lock.locked;
    head.outcome := lock.outcome;
    if head.outcome = 'taken' then
        -- After the lock: doubling the partitions locks the cursors first.
        select s.* into strict sub from /*schema*/subscription as s where s.name = p_subscription;
        if sub.ordering = 'total' then  -- the log is read up to the first parked event and no further
            first_seq := (select min(d.seq) from /*schema*/delivery as d
                          where d.subscription = p_subscription and d.generation = p_generation and d.status = 'pending'
                            and d.ordering_key = '');
        end if;
        head.outcome := coalesce(/*schema*/obstacle(cur, sub, p_knows, p_armed, first_seq), head.outcome);
    end if;
    if head.outcome <> 'taken' then
        head.due_in := /*schema*/next_retry(p_subscription, p_generation);
        return next head;
        return;
    end if;

    settles := sub.kind = 'handler';
    head.partition := cur.partition;
    head.cursor := cur.id;
    if settles then
        counted := /*schema*/count_deaths(cur, p_excused);
        cur.takes := counted.batch;
        cur.excused := counted.excused;
        head.batch := set_config('outrider.batch', cur.takes::text, true);
        if counted.deaths > 5 then
            update /*schema*/cursor as c set takes = cur.takes, excused = cur.excused where c.id = cur.id;
            perform /*schema*/count_take(cur.id, 1, p_excused);
            head.outcome := 'more';
            return next head;
            return;
        end if;
        suspicious := counted.deaths >= 3;
        p_limit := case when cur.open_until is null then p_limit else 1 end;
        -- If an event was parked or buried before the log was read up to it, or is parked in this partition: look at each event.
        select suspicious or exists (
                   select from /*schema*/delivery as d
                   where d.subscription = p_subscription and d.seq > least(cur.seq, cur.floor, cur.owed_after)),
               exists (select from /*schema*/delivery as d
                       where d.subscription = p_subscription and d.generation = p_generation
                         and d.partition = cur.partition and d.status = 'pending' and d.head and d.reached)
        into diverting, parked;
        if parked then
            diverting := true;
            return query select * from /*schema*/take_parked(
                p_subscription, cur, p_limit, p_armed, suspicious, cur.excused, head, p_worker, p_alone);
            if found then
                perform /*schema*/count_take(cur.id, 1, p_excused);
                return;
            end if;
        end if;
    end if;

    reading := /*schema*/read(cur, sub, least(lock.drawn, case when settles then first_seq end), lock.home, p_limit, p_scan);
    head.outcome := reading.outcome;
    seqs := reading.seqs;
    if settles and cur.open_until is not null and seqs <> '{}' then
        head.outcome := 'probe';
    elsif settles and head.outcome = 'done' and (diverting or sub.partitions > 1) then
        head.outcome := 'more';
    end if;
    if diverting and seqs <> '{}' then
        seqs := /*schema*/divert(cur, sub.ordering, seqs, suspicious);
    end if;

    return query
    with batch as materialized (
        select o.* from /*schema*/outbox as o
        where o.seq = any (seqs) and o.seq >= seqs[1] and o.seq <= seqs[cardinality(seqs)]
    ),
    own_receipts as (
        insert into /*schema*/event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
        select p_subscription, batch.id::text, batch.id, batch.seq, batch.generation, batch.content_class
        from batch
        where settles and not p_careful and batch.idempotency_key is null
        returning seq
    ),
    given_receipts as (
        insert into /*schema*/event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
        select p_subscription, winner.key, winner.id, winner.seq, winner.generation, winner.content_class
        from (select /*schema*/receipt_key(batch.workspace_id, batch.event_type, batch.idempotency_key, batch.id)
                         collate "C" as key, batch.*
              from batch
              where settles and (p_careful or batch.idempotency_key is not null)) as winner
        -- The insert would wait for an open replay that deletes the receipt (p_force). While it is there, the event is a duplicate.
        where not exists (select from /*schema*/event_handled as h
                          where h.handler_name = p_subscription and h.idempotency_key = winner.key)
        order by winner.key, winner.seq
        on conflict do nothing
        returning seq
    ),
    receipts as materialized (select * from own_receipts union all select * from given_receipts)
    select * from jsonb_populate_record(head, jsonb_build_object('duplicates', case when settles then
        cardinality(seqs) - (select count(*) from receipts) end))
    union all
    (select null, null, null, null, null, null, null,
            1, b.seq, b.id, b.event_type, b.event_version, b.occurred_at, b.source, b.target, b.content_class, b.channel,
            b.generation, b.workspace_id, b.aggregate_kind, b.aggregate_id, b.entity_version, /*schema*/as_text(b.payload),
            coalesce(b.idempotency_key, b.id::text), nullif(/*schema*/as_text(b.trace_context), ''), b.origin
     from batch as b
     -- The OR keeps this a hashed look-up. As a join it would be planned for a few rows and become quadratic.
     where not settles or b.seq in (select receipts.seq from receipts)
     order by b.seq);
    get diagnostics returned = row_count;

    if settles then
        if returned > 1 and (cur.failures > 0 or cur.open_until is not null) then
            update /*schema*/cursor as c set failures = 0, open_until = null where c.id = cur.id;
        end if;
        perform /*schema*/count_take(cur.id, 1, p_excused);
    end if;
end
$$;
