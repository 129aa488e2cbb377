-- take: read the next events of one cursor partition and advance it, exactly: nothing skipped, nothing twice.
--
-- Use:    in a READ COMMITTED transaction that has not written anything yet; handle the events in it; COMMIT makes both
--         true, ROLLBACK unmakes both. Without p_partition: any partition that has something and that nobody holds.
-- Locks:  the cursor row, FOR UPDATE SKIP LOCKED: the lease of the partition, held until the transaction ends.
-- Reads:  outbox by seq (fresh) and by (tx, seq) (late): at most p_scan rows a step and transaction, however long the
--         log or the backlog. Writes: the cursor row, and only when there was something to read.
-- Bound:  p_limit events, and batch_bytes of payloads, which the last event may pass. A payload that cannot be read is empty
--         text (as_text).
--
-- For a handler it also writes the receipts, in the order of their keys so that two batches cannot deadlock, and returns
-- only the events whose receipt is new: the claim settles, the commit makes it true (settle, refuse_unsettled).
-- Parked events of the partition that are due come before the log (take_parked). What is parked or buried already is passed
-- over when the log is read up to it, and later events of a parked one's line are parked behind it. p_knows: the event types
-- that the worker's code knows. p_excused: rollbacks in good order that the caller could not report (park). Takes that were
-- rolled back without an excuse are deaths; after three of them the batch is parked as suspect. p_armed: the suspect that
-- the caller has counted and may run now. p_alone: nothing else runs in the caller's process. p_careful: see own_receipts.
--
-- p_generation: 0 reads whatever has no cursor of its own generation, another number the events of that generation.
--
-- Returns a first row without an event, then the events. Its `outcome`:
--   idle     nothing to read: no transaction id used, nothing written; due_in = seconds until the next parked event
--   busy     other sessions hold what there is to read
--   more     there is more to read in this partition at once, take again after the commit (the batch may be empty)
--   done     everything that was published before the call has been read in this partition
--   suspect  a suspect is due: commit, then take again with p_alone
--   armed    a suspect was counted: commit, then take again with p_armed = delivery
--   waiting  order = total, and its parked event is not due
--   probe    the breaker was open: at most one event, and all is well again when it commits
--   open     the breaker is open; due_in says for how long at most
--   paused, unknown   nothing was read: an operator said so; the subscription wants types that are not in p_knows
--
-- Why it is exact. A number says nothing about when its transaction commits, so a plain "seq > position" skips what
-- commits late. The order of three steps makes up for it:
--   1. q: the numbers drawn so far. Whoever drew one of them had its transaction id before (outbox.tx stands before seq).
--   2. r: our own transaction id, drawn after q was read: all those ids are below r.
--   3. one statement with one snapshot: it sees what they committed; those still unfinished in it, below r, are kept
--      in the cursor (inflight, horizon), and their events are found by (tx, seq) once they have committed: "late".
-- Late events come before fresh ones and by seq, so that the order within a key holds. When they are more than one
-- batch, the transactions that finished move to `owing` and are read in pages, before anything else.
create or replace function /*schema*/take(
    p_subscription text, p_partition integer default null, p_limit integer default 500, p_scan integer default 10000,
    p_generation bigint default 0, p_knows text[] default null, p_armed bigint default null,
    p_excused integer default 0, p_worker text default null, p_careful boolean default false,
    p_alone boolean default false
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
    q          bigint;
    r          xid8;
    cur        /*schema*/cursor;
    sub        /*schema*/subscription;
    this       bigint;
    head       /*schema*/taken;
    this_take  bigint;
    new_excused bigint;
    deaths     bigint;
    first_seq  bigint;
    settles    boolean;
    relays     boolean;
    others     bigint[];
    filtered   boolean;
    withdrawn  boolean;
    suspicious boolean := false;
    diverting  boolean := false;
    rebased    record;
begin
    perform /*schema*/sees_all();
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'take needs a READ COMMITTED transaction, this one is %', current_setting('transaction_isolation')
            using errcode = 'OR001', hint = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    end if;
    if pg_current_xact_id_if_assigned() is not null then
        raise 'take must come before anything is written in its transaction'
            using errcode = 'OR001', hint = 'Take once, at the start of a new transaction.';
    end if;
    if (p_limit >= 1 and p_scan >= p_limit) is not true then
        raise 'take needs 1 <= limit <= scan, got limit % and scan %', p_limit, p_scan using errcode = 'OR001';
    end if;
    p_excused := least(greatest(p_excused, 0), 1000);  -- as many as count_take counts at once

    q := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);

    this := /*schema*/log_home();
    for cur in
        select c.* from /*schema*/cursor as c
        where c.subscription = p_subscription and c.generation = p_generation
          and (p_partition is null or c.partition = p_partition)
        order by random()
    loop
        -- Looked up again: another session may have read on since q.
        if cur.seq > q and cur.seq > coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0) then
            raise 'the cursor of "%" is at %, ahead of the log, which has drawn %', p_subscription, cur.seq, q
                using errcode = 'OR003',
                      hint = 'The log was restored without its sequence, or the sequence was set back.';
        end if;
        if cur.open_until > now() and p_armed is null then
            head.outcome := coalesce(nullif(head.outcome, 'idle'), 'open');
            continue;
        end if;
        if cur.cluster = this and cur.horizon < pg_snapshot_xmax(pg_current_snapshot())
           and cur.seq >= q and cur.owing is null and p_armed is null
           and not exists (select from /*schema*/delivery as d
                           where d.subscription = p_subscription and d.generation = p_generation
                             and d.partition = cur.partition and d.status = 'pending' and d.head and d.reached
                             and d.run_at <= now())
           and not exists (select from /*schema*/late_transactions(
                               cur.inflight, cur.horizon, pg_current_snapshot(), cur.floor, cur.seq)) then
            head.outcome := coalesce(head.outcome, 'idle');
            continue;
        end if;
        select c.* into cur from /*schema*/cursor as c
        where c.subscription = p_subscription and c.generation = p_generation and c.partition = cur.partition
        for update skip locked;
        if found then
            head.outcome := 'taken';
            exit;
        end if;
        head.outcome := 'busy';
    end loop;
    if head.outcome is null then
        raise 'there is no cursor for subscription "%", generation %, partition %',
            p_subscription, p_generation, coalesce(p_partition::text, 'any')
            using errcode = 'OR002', hint = coalesce(
                (select format('Its partitions are 0 to %s.', s.partitions - 1)
                 from /*schema*/subscription as s where s.name = p_subscription),
                'Register the subscription first: app.migrate() or outrider migrate --app.');
    end if;
    if head.outcome = 'taken' then
        -- After the lock: doubling the partitions locks the cursors first.
        select s.* into strict sub from /*schema*/subscription as s where s.name = p_subscription;
        if sub.paused_at is not null
           or exists (select from /*schema*/setting as s where s.name = 'paused' and s.value <> 0) then
            head.outcome := 'paused';
        elsif not sub.event_types <@ p_knows then
            head.outcome := 'unknown';
        elsif cur.open_until > now() and p_armed is null then
            head.outcome := 'open';
        elsif sub.ordering = 'total' then
            -- Its first parked event, up to which the log may be read; beyond it the cursor waits.
            first_seq := (select min(d.seq) from /*schema*/delivery as d
                          where d.subscription = p_subscription and d.generation = p_generation and d.status = 'pending'
                            and d.ordering_key = '');
            if first_seq <= cur.seq and p_armed is null and not exists (
                -- Late, and not read again since it failed: read on.
                select from /*schema*/delivery as d
                where d.subscription = p_subscription and d.seq = first_seq and not d.reached) and not exists (
                select from /*schema*/delivery as d
                where d.subscription = p_subscription and d.generation = p_generation and d.partition = cur.partition
                  and d.status = 'pending' and d.head and d.reached and d.run_at <= now()) then
                head.outcome := 'waiting';
            end if;
        end if;
    end if;
    if head.outcome <> 'taken' then
        head.due_in := (
            select extract(epoch from min(greatest(next.run_at, case when c.open_until > now() then c.open_until end)) - now())
            from /*schema*/cursor as c cross join lateral (
                select min(d.run_at) as run_at from /*schema*/delivery as d
                where d.subscription = p_subscription and d.generation = p_generation and d.partition = c.partition
                  and d.status = 'pending' and d.head and d.reached) as next
            where c.subscription = p_subscription and c.generation = p_generation);
        return next head;
        return;
    end if;
    r := pg_current_xact_id();
    q := greatest(q, cur.seq);       -- whoever held the cursor before us may have read on since q; never go back
    settles := sub.kind = 'handler';
    relays := sub.kind = 'relay';
    -- After the lock: who opens a generation copies this cursor under it.
    others := case p_generation when 0 then array(
        select distinct c.generation from /*schema*/cursor as c
        where c.subscription = p_subscription and c.generation <> 0) else '{}' end;
    filtered := p_generation <> 0 or others <> '{}';
    withdrawn := exists (select from /*schema*/withdrawal as w where w.seq > least(cur.seq, cur.floor, cur.owed_after));
    if cur.open_until is not null then
        p_limit := 1;
    end if;

    if settles then
        -- Counted at the end, when nothing of ours can fail any more: a full disk is not a worker's death. Nobody else
        -- draws from the sequence while we hold the cursor.
        this_take := coalesce(pg_sequence_last_value(format('/*schema*/takes_%s', cur.id)::regclass), 0) + 1;
        perform set_config('outrider.batch', this_take::text, true);
        new_excused := coalesce(pg_sequence_last_value(format('/*schema*/excused_%s', cur.id)::regclass), 0)
                       + p_excused;
        head.batch := this_take;
        head.partition := cur.partition;
        head.cursor := cur.id;
        -- After a crash of the server a sequence goes on up to 32 numbers further on: so many deaths in a row are none;
        -- begin to count anew.
        deaths := this_take - cur.takes - 1 - (new_excused - cur.excused);
        if deaths > 5 then
            update /*schema*/cursor as c set takes = this_take, excused = new_excused where c.id = cur.id;
            perform /*schema*/count_take(cur.id, 1, p_excused);
            head.outcome := 'more';
            return next head;
            return;
        end if;
        -- The excuse of a rollback may still be on its way: it needs no lock (park), and nobody else takes while we wait.
        for look in 1 .. 10 loop
            exit when deaths < 3;
            perform pg_sleep(0.02);
            new_excused := coalesce(pg_sequence_last_value(format('/*schema*/excused_%s', cur.id)::regclass), 0)
                           + p_excused;
            deaths := this_take - cur.takes - 1 - (new_excused - cur.excused);
        end loop;
        suspicious := deaths >= 3;
        -- Parked or buried before the log was read up to it, or parked in this partition: look at each event.
        diverting := suspicious or exists (
            select from /*schema*/delivery as d
            where d.subscription = p_subscription and d.seq > least(cur.seq, cur.floor, cur.owed_after));
        if exists (select from /*schema*/delivery as d
                   where d.subscription = p_subscription and d.generation = p_generation
                     and d.partition = cur.partition and d.status = 'pending' and d.head and d.reached) then
            diverting := true;
            return query select * from /*schema*/take_parked(
                p_subscription, cur, p_limit, p_armed, suspicious, new_excused, head, p_worker, p_alone);
            if found then
                perform /*schema*/count_take(cur.id, 1, p_excused);
                return;
            end if;
        end if;
        q := greatest(cur.seq, least(q, first_seq));
    end if;

    -- Restored: the transactions of its old home are over, and what they left is here. Their ids mean nothing from now on,
    -- except for what is still owed. Whoever moved a cursor here has finished, so its id is below xmax: if not, it is from
    -- elsewhere, whatever its home. In one statement, so that it is exact also for a cursor that never left.
    if (cur.cluster <> this or cur.horizon >= pg_snapshot_xmax(pg_current_snapshot())) and cur.owing is null then
        select nullif(array(
                   select /*schema*/late_transactions(
                       cur.inflight, cur.horizon, '9223372036854775807:9223372036854775807:', cur.floor, cur.seq)), '{}')
                   as owing,
               /*schema*/foreign_floor(pg_current_snapshot()) as floor, pg_current_snapshot() as now
        into rebased;
        cur.owing := rebased.owing;
        cur.owed_after := case when cur.owing is not null then cur.floor end;
        cur.floor := rebased.floor;
        cur.inflight := rebased.now;
        cur.horizon := r;
        cur.mark_seq := cur.floor;
        cur.mark_xid := '0';
        cur.cluster := this;
    end if;

    return query
    with snapshot as materialized (
        select pg_current_snapshot() as now
    ),
    late_tx as materialized (
        select owing.tx from unnest(cur.owing) as owing (tx)
        union all
        select found.tx
        from snapshot, /*schema*/late_transactions(
            cur.inflight, cur.horizon, snapshot.now, cur.floor, cur.seq) as found (tx)
        where cur.owing is null
    ),
    late_found as materialized (
        select late_tx.tx as of_tx, o.*
        from late_tx cross join lateral (
            select step.*
            -- As rows, and ordered by both: only the index on (tx, seq) will do, whatever the statistics say of tx.
            from (select o.* from /*schema*/outbox as o
                  where (o.tx, o.seq) > (late_tx.tx, coalesce(cur.owed_after, cur.floor))
                    and (o.tx, o.seq) <= (late_tx.tx, cur.seq)
                    and o.seq > coalesce(cur.owed_after, cur.floor) and o.seq <= cur.seq
                  order by o.tx, o.seq limit p_scan) as step
            where (sub.event_types is null or step.event_type = any (sub.event_types))
              and case when relays then (sub.forwards or step.origin is null)
                                        and (sub.workspace_id is null or step.workspace_id = sub.workspace_id)
                       else step.target is null or step.target = sub.context end
              and (sub.partitions = 1
                   or coalesce(hashtextextended(step.aggregate_id, 0), step.seq) & (sub.partitions - 1) = cur.partition)
              and (not filtered or case p_generation when 0 then step.generation <> all (others)
                                                     else step.generation = p_generation end)
              and (not withdrawn or not exists (select from /*schema*/withdrawal as w where w.seq = step.seq))
            limit p_limit
        ) as o
    ),
    late_stop as materialized (
        -- Where the reading of some transaction had to stop before its end; null when none had to.
        select min(case
            when found.events = p_limit then found.last_seq
            else (select o.seq from /*schema*/outbox as o
                  where (o.tx, o.seq) > (late_tx.tx, coalesce(cur.owed_after, cur.floor))
                    and (o.tx, o.seq) <= (late_tx.tx, cur.seq)
                    and o.seq > coalesce(cur.owed_after, cur.floor) and o.seq <= cur.seq
                  order by o.tx, o.seq offset p_scan - 1 limit 1)
        end) as seq
        from late_tx
        left join (select of_tx, count(*) as events, max(seq) as last_seq from late_found group by of_tx) as found
            on found.of_tx = late_tx.tx
    ),
    late_read as materialized (
        select late_found.* from late_found, late_stop
        where late_stop.seq is null or late_found.seq <= late_stop.seq
        order by late_found.seq limit p_limit
    ),
    late as materialized (
        select read.* from (
            select late_read.*, sum(/*schema*/stored_bytes(late_read.payload))
                                    over (order by late_read.seq rows between unbounded preceding and 1 preceding) as before
            from late_read) as read
        where read.before is null or read.before < /*schema*/batch_bytes()
    ),
    late_end as materialized (
        select case when count(*) = p_limit or count(*) < (select count(*) from late_read) then max(late.seq)
                    else (select seq from late_stop) end as seq,
               count(*) as events
        from late
    ),
    fresh as materialized (
        select step.*
        from (select o.* from /*schema*/outbox as o
              where o.seq > cur.seq and o.seq <= q
              order by o.seq limit p_scan) as step
        where (sub.event_types is null or step.event_type = any (sub.event_types))
          and case when relays then (sub.forwards or step.origin is null)
                                    and (sub.workspace_id is null or step.workspace_id = sub.workspace_id)
                   else step.target is null or step.target = sub.context end
          and (sub.partitions = 1
               or coalesce(hashtextextended(step.aggregate_id, 0), step.seq) & (sub.partitions - 1) = cur.partition)
          and (not filtered or case p_generation when 0 then step.generation <> all (others)
                                                 else step.generation = p_generation end)
          and (not withdrawn or not exists (select from /*schema*/withdrawal as w where w.seq = step.seq))
        limit (select case when cur.owing is null and late_end.seq is null then p_limit - late_end.events else 0 end
               from late_end)
    ),
    -- The fresh event with which the bytes of the batch are full; null when all fit.
    fresh_cut as materialized (
        select case when sum(/*schema*/stored_bytes(fresh.payload)) >= /*schema*/batch_bytes() then (
            select min(read.seq)
            from (select fresh.seq, sum(/*schema*/stored_bytes(fresh.payload)) over (order by fresh.seq) as bytes from fresh) as read
            where read.bytes >= /*schema*/batch_bytes()) end as seq
        from fresh
    ),
    fresh_end as materialized (
        select case
            when cur.owing is not null or late_end.seq is not null then cur.seq
            when (select seq from fresh_cut) is not null then (select seq from fresh_cut)
            when count(fresh.seq) = p_limit - late_end.events then max(fresh.seq)
            else coalesce((select o.seq from /*schema*/outbox as o
                           where o.seq > cur.seq and o.seq <= q
                           order by o.seq offset p_scan - 1 limit 1), q)
        end as seq
        from late_end left join fresh on true
        group by late_end.seq, late_end.events
    ),
    batch as materialized (
        select 1 as part, late.seq, late.id, late.event_type, late.event_version, late.occurred_at, late.source,
               late.target, late.content_class, late.channel, late.generation, late.workspace_id,
               late.aggregate_kind, late.aggregate_id, late.entity_version, late.payload, late.idempotency_key,
               late.trace_context, late.origin
        from late
        union all
        select 2, fresh.seq, fresh.id, fresh.event_type, fresh.event_version, fresh.occurred_at, fresh.source,
               fresh.target, fresh.content_class, fresh.channel, fresh.generation, fresh.workspace_id,
               fresh.aggregate_kind, fresh.aggregate_id, fresh.entity_version, fresh.payload, fresh.idempotency_key,
               fresh.trace_context, fresh.origin
        from fresh
        where fresh.seq <= coalesce((select seq from fresh_cut), fresh.seq)
    ),
    held as materialized (
        select batch.part, batch.seq, batch.id, batch.event_type, batch.workspace_id, lined.line, seen.known
        from batch
        cross join lateral (
            select case sub.ordering when 'total' then '' when 'key' then
                       coalesce(length(batch.workspace_id) || ':' || batch.workspace_id || ':', '') || batch.aggregate_id
                   end as line) as lined
        cross join lateral (
            select exists (select from /*schema*/delivery as d
                           where d.subscription = p_subscription and d.seq = batch.seq) as known) as seen
        where diverting and (suspicious or seen.known
              or exists (select from /*schema*/delivery as d
                         where d.subscription = p_subscription and d.generation = p_generation and d.status = 'pending'
                           and d.ordering_key = lined.line and d.seq < batch.seq))
    ),
    passed as (
        update /*schema*/delivery as d set reached = true
        from held where held.known and d.subscription = p_subscription and d.seq = held.seq and not d.reached
    ),
    parked as (
        insert into /*schema*/delivery (
            subscription, generation, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at,
            suspect, workspace_id)
        select p_subscription, p_generation, cur.partition, held.seq, held.id, held.event_type, held.line,
               'pending', held.line is null, true, now(), suspicious, held.workspace_id
        from held
        where not held.known
        order by held.part, held.seq
    ),
    -- An event without a key of its producer's has its id for a key, which nobody else has: a plain insert does (ON
    -- CONFLICT would cost 2.6 us more, of 9.7). If it is there all the same, somebody has moved the cursor back: the take
    -- fails with a unique violation, and comes again with p_careful.
    own_receipts as (
        insert into /*schema*/event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
        select p_subscription, batch.id::text, batch.id, batch.seq, batch.generation, batch.content_class
        from batch
        where settles and not p_careful and batch.idempotency_key is null
          and (not diverting or batch.seq not in (select held.seq from held))
        returning seq
    ),
    given_receipts as (
        insert into /*schema*/event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
        select p_subscription, winner.key, winner.id, winner.seq, winner.generation, winner.content_class
        from (select coalesce(
            coalesce(length(batch.workspace_id) || ':' || batch.workspace_id || ':', '') || batch.event_type || ':'
                || batch.idempotency_key, batch.id::text) collate "C" as key,
                     batch.part, batch.seq, batch.id, batch.generation, batch.content_class
              from batch
              where settles and (p_careful or batch.idempotency_key is not null)
                and (not diverting or batch.seq not in (select held.seq from held))) as winner
        order by winner.key, winner.part, winner.seq
        on conflict do nothing
        returning seq
    ),
    receipts as materialized (
        select own_receipts.seq from own_receipts union all select given_receipts.seq from given_receipts
    ),
    advance as (
        update /*schema*/cursor as c
        set seq        = fresh_end.seq,
            owing      = case when late_end.seq is null then null else
                             coalesce(cur.owing, (select array_agg(late_tx.tx) from late_tx)) end,
            owed_after = late_end.seq,
            inflight   = case when cur.owing is null then snapshot.now else cur.inflight end,
            horizon    = case when cur.owing is null and late_end.seq is null then r else cur.horizon end,
            -- Visible, yet not finished here: a fresh event from another cluster must not be found again as a late one.
            floor      = greatest(cur.floor, case when moved.mark then cur.mark_seq end,
                                  (select max(fresh.seq) from fresh
                                   where fresh.seq <= coalesce((select seq from fresh_cut), fresh.seq)
                                     and not pg_visible_in_snapshot(fresh.tx, snapshot.now))),
            mark_seq   = case when moved.mark then q else cur.mark_seq end,
            mark_xid   = case when moved.mark then r else cur.mark_xid end,
            cluster    = cur.cluster,
            takes      = coalesce(this_take, c.takes),
            excused    = coalesce(new_excused, c.excused),
            failures   = case when receipts_there.yes then 0 else c.failures end,
            open_until = case when not receipts_there.yes then c.open_until end
        from snapshot, late_end, fresh_end,
             lateral (select cur.owing is null and late_end.seq is null
                             and pg_snapshot_xmin(snapshot.now) >= cur.mark_xid as mark) as moved,
             lateral (select (cur.failures > 0 or cur.open_until is not null) and exists (select from receipts) as yes
                     ) as receipts_there
        where c.subscription = p_subscription and c.generation = p_generation and c.partition = cur.partition
        returning case when cur.open_until is not null and exists (select from batch) then 'probe'
                       when c.seq = q and c.owing is null and cur.owing is null then 'done' else 'more' end as outcome
    )
    select e.outcome, e.partition, e.batch, null::double precision, e.cursor, null::bigint, e.conceded,
           e.attempt, e.seq, e.id, e.event_type, e.event_version, e.occurred_at, e.source, e.target,
           e.content_class, e.channel, e.generation, e.workspace_id, e.aggregate_kind, e.aggregate_id,
           e.entity_version, e.payload, e.idempotency_key, e.trace_context, e.origin
    from (
        select 0 as part, advance.outcome, cur.partition as partition, this_take as batch,
               case when settles then (select count(*) from batch) - (select count(*) from receipts)
                                      - (select count(*) from held) end::integer as conceded,
               cur.id as cursor,
               null::integer as attempt, null::bigint as seq, null::uuid as id, null::text as event_type,
               null::integer as event_version, null::timestamptz as occurred_at, null::text as source,
               null::text as target, null::text as content_class, null::text as channel, null::bigint as generation,
               null::text as workspace_id, null::text as aggregate_kind, null::text as aggregate_id,
               null::bigint as entity_version, null::text as payload, null::text as idempotency_key,
               null::text as trace_context, null::text as origin
        from advance
        union all
        select b.part, null, null, null, null, null,
               1, b.seq, b.id, b.event_type, b.event_version, b.occurred_at, b.source, b.target,
               b.content_class, b.channel, b.generation, b.workspace_id, b.aggregate_kind, b.aggregate_id,
               b.entity_version, /*schema*/as_text(b.payload), coalesce(b.idempotency_key, b.id::text),
               nullif(/*schema*/as_text(b.trace_context), ''), b.origin
        from batch as b
        -- The OR keeps this a hashed look-up: as a join it would be planned for a few rows, and be quadratic.
        where not settles or b.seq in (select receipts.seq from receipts)
    ) as e
    order by e.part, e.seq;

    if suspicious then
        perform /*schema*/promote(p_subscription, p_generation, array(
            select distinct d.ordering_key from /*schema*/delivery as d
            where d.subscription = p_subscription and d.generation = p_generation and d.status = 'pending' and d.suspect and d.ordering_key is not null));
    end if;
    if settles then
        perform /*schema*/count_take(cur.id, 1, p_excused);
    end if;
end
$$;
