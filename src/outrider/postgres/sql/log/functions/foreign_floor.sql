-- foreign_floor: the newest event that came from another cluster and whose transaction id could still be drawn here.
-- Such an event is visible although the snapshot says that its transaction has not finished. A cursor never looks for
-- late events at or below it, so that a new transaction with the same id cannot bring it back. 0 when there is none.
-- Reads:  outbox by (tx, seq); the open range is empty unless the log was restored from a cluster with higher ids.
-- STABLE on purpose: p_now must be the snapshot of the statement that calls it.
create or replace function /*schema*/foreign_floor(p_now pg_snapshot) returns bigint
    language sql stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set jit = off
    set enable_bitmapscan = off
as $$
    -- seq + 0: for a plain max(seq) the planner walks the whole log backward by seq, looking for a tx that is not there
    -- (a million events: 0.2 s instead of less than a millisecond).
    select coalesce(greatest(
        (select max(newest.seq)
         from (select pg_snapshot_xip(p_now) as tx) as listed,
              lateral (select max(o.seq + 0) as seq from /*schema*/outbox as o where o.tx = listed.tx) as newest),
        (select max(o.seq + 0) from /*schema*/outbox as o where o.tx >= pg_snapshot_xmax(p_now))
    ), 0)
$$;
