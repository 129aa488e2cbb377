-- unread: how many events a subscription still has to read in the log, and whether there may be more.
-- Reads at most p_scan rows behind the cursors, and of each late transaction. By seq and by (tx, seq), as in read.
create or replace function /*schema*/unread(p_name text, p_scan integer default 10000, out events bigint, out more boolean)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set jit = off
as $$
declare
    sub /*schema*/subscription;
begin
    select s.* into sub from /*schema*/subscription as s where s.name = p_name;
    with place as (
        select c.*,
               -- Restored from elsewhere, where all its transactions are over: the rule is that of read.
               case when c.cluster <> (select /*schema*/log_home())
                         or c.horizon >= pg_snapshot_xmax(pg_current_snapshot())
                    then '9223372036854775807:9223372036854775807:'::pg_snapshot else pg_current_snapshot() end as finished
        from /*schema*/cursor as c where c.subscription = p_name
    ),
    fresh as materialized (
        select o.seq, o.aggregate_id, o.generation, /*schema*/concerns(o, sub) as concerns from /*schema*/outbox as o
        where o.seq > (select min(place.seq) from place) order by o.seq limit p_scan
    ),
    -- Both owing and inflight: while owing is read in pages, transactions of inflight may finish.
    late_tx as materialized (
        select place.partition, place.generation, place.seq as until, owing.tx, place.owed_after as after
        from place cross join unnest(place.owing) as owing (tx)
        union all
        select place.partition, place.generation, place.seq, found.tx, place.floor
        from place cross join /*schema*/late_transactions(
            place.inflight, place.horizon, place.finished, place.floor, place.seq) as found (tx)
    ),
    late as (
        select o.*, late_tx.partition, late_tx.generation as read_by
        from late_tx cross join lateral (
            select o.seq, o.aggregate_id, o.generation, /*schema*/concerns(o, sub) as concerns from /*schema*/outbox as o
            where o.tx = late_tx.tx and o.seq > late_tx.after and o.seq <= late_tx.until
            order by o.seq limit p_scan) as o
    ),
    unread as (
        select fresh.*, place.partition, place.generation as read_by from fresh join place on fresh.seq > place.seq
        union
        select late.* from late
    )
    select count(*), (select count(*) = p_scan from fresh)
    into events, more
    from unread
    where unread.concerns
      and unread.partition = coalesce(hashtextextended(unread.aggregate_id, 0), unread.seq) & (sub.partitions - 1)
      -- As in wanted: a generation has cursors of its own, or those of generation 0 read it.
      and unread.read_by = coalesce((select max(place.generation) from place where place.generation = unread.generation), 0)
      and not exists (select from /*schema*/withdrawal as w where w.seq = unread.seq);
end
$$;
