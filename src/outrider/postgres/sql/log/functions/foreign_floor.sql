-- foreign_floor: the seq of the newest event from another cluster whose transaction id can still be assigned here; 0 if none.
-- Such an event is visible although its transaction is unfinished in the snapshot. A cursor never looks for late events at or below
-- it, so a new transaction with the same id cannot bring it back.
-- Reads:  outbox by (tx, seq); the open range is empty unless the log was restored from a cluster with higher ids.
-- STABLE on purpose: p_now must be the snapshot of the statement that calls it.
create or replace function /*schema*/foreign_floor(p_now pg_snapshot) returns bigint
    language sql stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set jit = off
    set enable_bitmapscan = off
as $$
    -- seq + 0: for a plain max(seq) the planner walks the whole log backward by seq, in search of a tx that is not there
    -- (with a million events 0.2 s instead of less than 1 ms).
    select coalesce(greatest(
        (select max(newest.seq)
         from (select pg_snapshot_xip(p_now) as tx) as listed,
              lateral (select max(o.seq + 0) as seq from /*schema*/outbox as o where o.tx = listed.tx) as newest),
        (select max(o.seq + 0) from /*schema*/outbox as o where o.tx >= pg_snapshot_xmax(p_now))
    ), 0)
$$;
