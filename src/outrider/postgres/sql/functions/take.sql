-- take: read the next events of one cursor partition and advance it, exactly: nothing skipped, nothing twice.
--
-- Use:    in a READ COMMITTED transaction that has not written anything yet; handle the events in it; COMMIT makes both
--         true, ROLLBACK unmakes both. Without p_partition: any partition that has something and that nobody holds.
-- Locks:  the cursor row, FOR UPDATE SKIP LOCKED: the lease of the partition, held until the transaction ends.
-- Reads:  outbox by seq (fresh) and by (tx, seq) (late): at most p_scan rows a step and transaction, however long the
--         log or the backlog. Writes: the cursor row, and only when there was something to read.
--
-- Returns at least one row; `outcome` is the same in all of them, and `seq` is null when the batch is empty:
--   idle  nothing to read: no transaction id used, nothing written
--   busy  other sessions hold what there is to read
--   more  there is more to read in this partition at once, take again after the commit (the batch may be empty)
--   done  everything that was published before the call has been read in this partition
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
    p_generation bigint default 0
) returns table (
    outcome text, partition integer, seq bigint, id uuid, event_type text, event_version integer, occurred_at timestamptz,
    source text, target text, content_class text, channel text, generation bigint, workspace_id text,
    aggregate_kind text, aggregate_id text, entity_version bigint, payload text, idempotency_key text,
    trace_context text, origin text
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off           -- an error instead of silently seeing nothing
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
begin
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

    q := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);

    this := (select system_identifier from pg_control_system());
    outcome := null;
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
        if cur.cluster = this and cur.horizon < pg_snapshot_xmax(pg_current_snapshot())
           and cur.seq >= q and cur.owing is null
           and not exists (select from /*schema*/late_transactions(
                               cur.inflight, cur.horizon, pg_current_snapshot(), cur.floor, cur.seq)) then
            outcome := coalesce(outcome, 'idle');
            continue;
        end if;
        select c.* into cur from /*schema*/cursor as c
        where c.subscription = p_subscription and c.generation = p_generation and c.partition = cur.partition
        for update skip locked;
        if found then
            outcome := 'taken';
            exit;
        end if;
        outcome := 'busy';
    end loop;
    if outcome is null then
        raise 'there is no cursor for subscription "%", generation %, partition %',
            p_subscription, p_generation, coalesce(p_partition::text, 'any')
            using errcode = 'OR002', hint = coalesce(
                (select format('Its partitions are 0 to %s.', s.partitions - 1)
                 from /*schema*/subscription as s where s.name = p_subscription),
                'Register the subscription first: app.migrate() or outrider migrate --app.');
    end if;
    if outcome <> 'taken' then
        return next;
        return;
    end if;
    r := pg_current_xact_id();
    q := greatest(q, cur.seq);       -- whoever held the cursor before us may have read on since q; never go back
    -- After the lock: doubling the partitions locks the cursors first.
    select s.* into strict sub from /*schema*/subscription as s where s.name = p_subscription;

    -- Restored from another cluster: its transactions are over, and what they left is here. Its ids mean nothing from
    -- now on, except for what is still owed. A clone of this cluster that went its own way has the same identifier; but
    -- whoever moved a cursor here has finished, so its id is below xmax.
    if (cur.cluster <> this or cur.horizon >= pg_snapshot_xmax(pg_current_snapshot())) and cur.owing is null then
        cur.owing := nullif(array(
            select /*schema*/late_transactions(
                cur.inflight, cur.horizon, '9223372036854775807:9223372036854775807:', cur.floor, cur.seq)), '{}');
        cur.owed_after := case when cur.owing is not null then cur.floor end;
        cur.floor := (select /*schema*/foreign_floor(pg_current_snapshot()));
        cur.inflight := '9223372036854775807:9223372036854775807:';
        cur.horizon := '0';
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
            from (select o.* from /*schema*/outbox as o
                  where o.tx = late_tx.tx and o.seq > coalesce(cur.owed_after, cur.floor) and o.seq <= cur.seq
                  order by o.seq limit p_scan) as step
            where (sub.event_types is null or step.event_type = any (sub.event_types))
              and (step.target is null or step.target = sub.context)
              and (sub.partitions = 1
                   or coalesce(hashtextextended(step.aggregate_id, 0), step.seq) & (sub.partitions - 1) = cur.partition)
            limit p_limit
        ) as o
    ),
    late_stop as materialized (
        -- Where the reading of some transaction had to stop before its end; null when none had to.
        select min(case
            when found.events = p_limit then found.last_seq
            else (select o.seq from /*schema*/outbox as o
                  where o.tx = late_tx.tx and o.seq > coalesce(cur.owed_after, cur.floor) and o.seq <= cur.seq
                  order by o.seq offset p_scan - 1 limit 1)
        end) as seq
        from late_tx
        left join (select of_tx, count(*) as events, max(seq) as last_seq from late_found group by of_tx) as found
            on found.of_tx = late_tx.tx
    ),
    late as materialized (
        select late_found.* from late_found, late_stop
        where late_stop.seq is null or late_found.seq <= late_stop.seq
        order by late_found.seq limit p_limit
    ),
    late_end as materialized (
        select case when count(*) = p_limit then max(late.seq) else (select seq from late_stop) end as seq,
               count(*) as events
        from late
    ),
    fresh as materialized (
        select step.*
        from (select o.* from /*schema*/outbox as o
              where o.seq > cur.seq and o.seq <= q
              order by o.seq limit p_scan) as step
        where (sub.event_types is null or step.event_type = any (sub.event_types))
          and (step.target is null or step.target = sub.context)
          and (sub.partitions = 1
               or coalesce(hashtextextended(step.aggregate_id, 0), step.seq) & (sub.partitions - 1) = cur.partition)
        limit (select case when cur.owing is null and late_end.seq is null then p_limit - late_end.events else 0 end
               from late_end)
    ),
    fresh_end as materialized (
        select case
            when cur.owing is not null or late_end.seq is not null then cur.seq
            when count(fresh.seq) = p_limit - late_end.events then max(fresh.seq)
            else coalesce((select o.seq from /*schema*/outbox as o
                           where o.seq > cur.seq and o.seq <= q
                           order by o.seq offset p_scan - 1 limit 1), q)
        end as seq
        from late_end left join fresh on true
        group by late_end.seq, late_end.events
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
                                   where not pg_visible_in_snapshot(fresh.tx, snapshot.now))),
            mark_seq   = case when moved.mark then q else cur.mark_seq end,
            mark_xid   = case when moved.mark then r else cur.mark_xid end,
            cluster    = cur.cluster
        from snapshot, late_end, fresh_end,
             lateral (select cur.owing is null and late_end.seq is null
                             and pg_snapshot_xmin(snapshot.now) >= cur.mark_xid as mark) as moved
        where c.subscription = p_subscription and c.generation = p_generation and c.partition = cur.partition
        returning case when c.seq = q and c.owing is null and cur.owing is null then 'done' else 'more' end as outcome
    )
    select advance.outcome, cur.partition, e.seq, e.id, e.event_type, e.event_version, e.occurred_at, e.source, e.target,
           e.content_class, e.channel, e.generation, e.workspace_id, e.aggregate_kind, e.aggregate_id,
           e.entity_version, e.payload::text, coalesce(e.idempotency_key, e.id::text), e.trace_context::text, e.origin
    from advance left join (
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
    ) as e on true
    order by e.part, e.seq;
end
$$;
