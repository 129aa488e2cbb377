-- foreign_floor: the newest event that came from another cluster and whose transaction id could still be drawn here.
-- Such an event is visible although the snapshot says that its transaction has not finished. A cursor never looks for
-- late events at or below it, so that a new transaction with the same id cannot bring it back. 0 when there is none.
-- Reads:  outbox by (tx, seq); the open range is empty unless the log was restored from a cluster with higher ids.
-- STABLE on purpose: p_now must be the snapshot of the statement that calls it.
create or replace function /*schema*/foreign_floor(p_now pg_snapshot) returns bigint
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(greatest(
        (select max(o.seq) from /*schema*/outbox as o
         where o.tx in (select pg_snapshot_xip(p_now))),
        (select max(o.seq) from /*schema*/outbox as o
         where o.tx >= pg_snapshot_xmax(p_now))
    ), 0)
$$;
