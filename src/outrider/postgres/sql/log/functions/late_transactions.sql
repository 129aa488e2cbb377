-- late_transactions: the transactions that were unfinished when a cursor last advanced, and have left events at or below it.
-- Reads:  outbox by (tx, seq), one probe per finished transaction of the snapshot's list, and a skip scan over the ids above
--         the snapshot. The cost does not depend on how many events a transaction wrote.
-- Locks:  nothing.
-- STABLE on purpose: it must see exactly the snapshot of the statement that calls it.
create or replace function /*schema*/late_transactions(
    p_inflight pg_snapshot, p_horizon xid8, p_now pg_snapshot, p_floor bigint, p_upto bigint
) returns setof xid8
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_snapshot_xmin(p_inflight) < pg_snapshot_xmax(p_inflight) then
        return query
        select listed.tx
        from (select pg_snapshot_xip(p_inflight) as tx) as listed,
             -- Not EXISTS, which the planner would turn into a join that reads all their events.
             lateral (select from /*schema*/outbox as o
                      where (o.tx, o.seq) > (listed.tx, p_floor) and (o.tx, o.seq) <= (listed.tx, p_upto)
                        and o.seq > p_floor and o.seq <= p_upto
                      order by o.tx, o.seq limit 1) as one
        where listed.tx < p_horizon and pg_visible_in_snapshot(listed.tx, p_now);
    end if;

    -- A snapshot's xmax is one past the newest *finished* transaction: running ones above it are not in its list.
    if pg_snapshot_xmax(p_inflight) < p_horizon then
        return query
        with recursive above as (
            (select o.tx from /*schema*/outbox as o
             where o.tx >= pg_snapshot_xmax(p_inflight) and o.tx < p_horizon and o.seq > p_floor and o.seq <= p_upto
             order by o.tx limit 1)
            union all
            select (select o.tx from /*schema*/outbox as o
                    where o.tx > above.tx and o.tx < p_horizon and o.seq > p_floor and o.seq <= p_upto
                    order by o.tx limit 1)
            from above
            where above.tx is not null
        )
        select above.tx from above where above.tx is not null;
    end if;
end
$$;
