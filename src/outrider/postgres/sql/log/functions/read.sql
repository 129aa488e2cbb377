-- read: the exact read of the log: the next events of a locked cursor, which is advanced past them. Skips none, repeats none.
--
-- Use:    after lock_cursor, in the same transaction, once. Only COMMIT makes it final. p_cursor is written back as a whole: the
--         caller may have changed columns of its own.
-- Reads:  outbox by seq (fresh) and by (tx, seq) (late), however long the log or the backlog: at most p_limit events, p_scan log
--         positions, and batch_bytes of payloads, which the last event may exceed. Writes: the cursor row.
-- Returns seqs: the events, in their order. outcome: done = everything that was published before lock_cursor has been read
--         in this partition; more = there is more to read at once.
--
-- Why it is exact. A position says nothing about when its transaction commits, so a plain "seq > position" skips what
-- commits late. Three steps in this order prevent it:
--   1. q: the last position handed out (lock_cursor). Whoever got one had its transaction id before (outbox.tx stands before seq).
--   2. r: our own transaction id, assigned after q was read (lock_cursor): all those ids are below r.
--   3. One statement with one snapshot sees what they committed. The transactions below r that are unfinished in this snapshot
--      are kept in the cursor (inflight, horizon). Once they have committed, their events are found by (tx, seq): "late".
-- So each event at or below the new position has been read, or its transaction is kept, or it was rolled back. This holds for every
-- position up to q: the statement may stop at any of them. A separate statement before, to look for late transactions, would lose
-- those that finish between the two: the second no longer sees them running, and forgets them.
--
-- Late events come before fresh ones, and all by seq, so that the order within a key holds. If they fill a batch, nothing is
-- advanced. Instead the finished transactions move to `owing`, from one snapshot, and inflight keeps the unfinished ones; seq and
-- horizon stay. What is owed is then read in pages, before anything else: nobody adds to it.
create or replace function /*schema*/read(
    p_cursor /*schema*/cursor, p_subscription /*schema*/subscription, p_drawn bigint, p_home bigint, p_limit integer,
    p_scan integer, out outcome text, out seqs bigint[]
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    cur       /*schema*/cursor := p_cursor;
    q         bigint := greatest(p_drawn, cur.seq);  -- never go back: another session may have read further before we had the lock
    r         xid8 := pg_current_xact_id();
    upto      bigint := q;
    payloads  constant text := $payloads$
        select o.payload from unnest($1) with ordinality as q (seq, n)
        cross join lateral (select o.payload from /*schema*/outbox as o where o.seq = q.seq limit 1) as o
        order by q.n$payloads$;
    others    bigint[];
    withdrawn boolean;
begin
    -- After the lock, under which open_generation copies the cursor of generation 0.
    select array(select distinct c.generation from /*schema*/cursor as c
                 where cur.generation = 0 and c.subscription = cur.subscription and c.generation <> 0),
           exists (select from /*schema*/withdrawal as w where w.seq > least(cur.seq, cur.floor, cur.owed_after))
    into others, withdrawn;

    -- Rebase after a restore. The transactions of the old home are over, and what they left is here. Their ids mean nothing from
    -- now on, except for what is owed. A transaction that advanced a cursor here has finished, so its id (horizon) is below xmax;
    -- otherwise the cursor is from elsewhere, whatever its home says. One statement, so that a rebase is exact also for a cursor
    -- that never left.
    if (cur.cluster <> p_home or cur.horizon >= pg_snapshot_xmax(pg_current_snapshot())) and cur.owing is null then
        select nullif(array(
                   select /*schema*/late_transactions(
                       cur.inflight, cur.horizon, '9223372036854775807:9223372036854775807:', cur.floor, cur.seq)), '{}'),
               cur.floor, pg_current_snapshot(), /*schema*/foreign_floor(pg_current_snapshot())
        into cur.owing, cur.owed_after, cur.inflight, cur.floor;
        if cur.owing is null then
            cur.owed_after := null;
        end if;
        cur.horizon := r;
        cur.mark_seq := cur.floor;
        cur.mark_xid := '0';
        cur.cluster := p_home;
    end if;

    if cur.owing is null then
        if upto > cur.seq + p_scan then
            -- Far behind: a step of p_scan positions, from the next event on.
            upto := least(upto, p_scan - 1 + coalesce((
                select o.seq from /*schema*/outbox as o where o.seq > cur.seq and o.seq <= upto order by o.seq limit 1), upto));
        end if;

        with snapshot as materialized (
            select pg_current_snapshot() as now
        ),
        late as materialized (
            select o.seq, o.at_most, o.wanted
            from snapshot, /*schema*/late_transactions(
                     cur.inflight, cur.horizon, snapshot.now, cur.floor, cur.seq) as finished (tx),
                 lateral (
                     select o.seq, /*schema*/stored_at_most(o.payload) as at_most,
                            /*schema*/wanted(o, p_subscription, cur, others, withdrawn) as wanted
                     from /*schema*/outbox as o
                     -- As rows, and ordered by both: only the index on (tx, seq) will do, whatever the statistics say of tx.
                     where (o.tx, o.seq) > (finished.tx, cur.floor) and (o.tx, o.seq) <= (finished.tx, cur.seq)
                       and o.seq > cur.floor and o.seq <= cur.seq
                     order by o.tx, o.seq limit p_limit) as o
            limit p_limit
        ),
        late_end as materialized (
            select count(*) filter (where late.wanted) as events,
                   count(*) = p_limit or coalesce(
                       case when sum(late.at_most) filter (where late.wanted) >= /*schema*/batch_bytes() then
                           /*schema*/fitting(payloads, array_agg(late.seq) filter (where late.wanted)) is not null end,
                       false) as full
            from late
        ),
        fresh as materialized (
            select o.seq, o.tx, /*schema*/stored_at_most(o.payload) as at_most
            from /*schema*/outbox as o
            where o.seq > cur.seq and o.seq <= upto and /*schema*/wanted(o, p_subscription, cur, others, withdrawn)
            order by o.seq
            limit (select case when late_end.full then 0 else p_limit - late_end.events end from late_end)
        ),
        fresh_end as materialized (
            select coalesce(
                case when sum(fresh.at_most) >= /*schema*/batch_bytes() then
                    (array_agg(fresh.seq order by fresh.seq))[
                        /*schema*/fitting(payloads, array_agg(fresh.seq order by fresh.seq))] end,
                case when count(*) = (select p_limit - late_end.events from late_end) then max(fresh.seq)
                     else upto end) as seq
            from fresh
        ),
        advance as (
            update /*schema*/cursor as c
            set seq        = fresh_end.seq,
                owing      = null,
                owed_after = null,
                inflight   = snapshot.now,
                horizon    = r,
                -- Visible, yet not finished here: a fresh event from another cluster must not be found again as a late one.
                floor      = greatest(cur.floor, case when moved.mark then cur.mark_seq end,
                                      (select max(fresh.seq) from fresh
                                       where fresh.tx >= pg_snapshot_xmin(snapshot.now) and fresh.seq <= fresh_end.seq
                                         and not pg_visible_in_snapshot(fresh.tx, snapshot.now))),
                mark_seq   = case when moved.mark then q else cur.mark_seq end,
                mark_xid   = case when moved.mark then r else cur.mark_xid end,
                cluster    = cur.cluster,
                takes      = cur.takes,
                excused    = cur.excused
            from snapshot, late_end, fresh_end,
                 lateral (select pg_snapshot_xmin(snapshot.now) >= cur.mark_xid as mark) as moved
            where c.id = cur.id and not late_end.full
            returning c.seq
        )
        select case when advance.seq = q then 'done' else 'more' end,
               array(select late.seq from late where late.wanted
                     union all
                     select fresh.seq from fresh where fresh.seq <= advance.seq
                     order by seq)
        into outcome, seqs
        from advance;
        if found then
            return;
        end if;

        select array(select /*schema*/late_transactions(
                         cur.inflight, cur.horizon, pg_current_snapshot(), cur.floor, cur.seq)),
               cur.floor, pg_current_snapshot()
        into cur.owing, cur.owed_after, cur.inflight;
    end if;

    with page as materialized (
        -- p_scan positions, from the next event on.
        select least(cur.seq, min(o.seq) + p_scan - 1) as last
        from unnest(cur.owing) as owed (tx),
             lateral (select o.seq from /*schema*/outbox as o
                      where (o.tx, o.seq) > (owed.tx, cur.owed_after) and (o.tx, o.seq) <= (owed.tx, cur.seq)
                        and o.seq > cur.owed_after and o.seq <= cur.seq
                      order by o.tx, o.seq limit 1) as o
    ),
    late as materialized (
        select o.seq, o.at_most
        from page, unnest(cur.owing) as owed (tx),
             lateral (select o.seq, /*schema*/stored_at_most(o.payload) as at_most from /*schema*/outbox as o
                      where (o.tx, o.seq) > (owed.tx, cur.owed_after) and (o.tx, o.seq) <= (owed.tx, page.last)
                        and o.seq > cur.owed_after and o.seq <= page.last
                        and /*schema*/wanted(o, p_subscription, cur, others, withdrawn)
                      order by o.tx, o.seq limit p_limit) as o
        order by o.seq limit p_limit
    ),
    fit as materialized (
        select late.seq from late
        order by late.seq
        limit (select case when sum(late.at_most) >= /*schema*/batch_bytes() then
                               /*schema*/fitting(payloads, array_agg(late.seq order by late.seq)) end from late)
    ),
    fit_end as materialized (
        select case when count(*) = p_limit or count(*) < (select count(*) from late) then max(fit.seq)
                    else coalesce((select page.last from page), cur.seq) end as seq
        from fit
    ),
    advance as (
        update /*schema*/cursor as c
        set owing      = case when fit_end.seq < cur.seq then cur.owing end,
            owed_after = case when fit_end.seq < cur.seq then fit_end.seq end,
            inflight   = cur.inflight,
            horizon    = cur.horizon,
            floor      = cur.floor,
            mark_seq   = cur.mark_seq,
            mark_xid   = cur.mark_xid,
            cluster    = cur.cluster,
            takes      = cur.takes,
            excused    = cur.excused
        from fit_end
        where c.id = cur.id
    )
    select 'more', array(select fit.seq from fit order by fit.seq) into outcome, seqs;
end
$$;
