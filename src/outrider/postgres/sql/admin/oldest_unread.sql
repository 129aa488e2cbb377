-- oldest_unread: when the oldest unread event of each subscription occurred, and whether that is certain. Of a relay also the unread
-- events by type, [type, number, oldest], and whether these are all.
-- Reads at most `scan` rows behind the cursors (of a relay `relay_scan`), and of each late transaction. By seq and by (tx, seq), as in
-- read. Null and certain: there is none.
with place as materialized (
    select s.kind, s.partitions, s as wants, c.*,
           case s.kind when 'relay' then %(relay_scan)s::bigint else %(scan)s::bigint end as scan,
           -- Restored from elsewhere, where all its transactions are over: the rule is that of read.
           case when c.cluster <> (select /*schema*/log_home())
                     or c.horizon >= pg_snapshot_xmax(pg_current_snapshot())
                then '9223372036854775807:9223372036854775807:'::pg_snapshot else pg_current_snapshot() end as finished
    from /*schema*/cursor as c join /*schema*/subscription as s on s.name = c.subscription
),
fresh as materialized (
    select first.subscription, first.scan, o.*
    from (select s.name as subscription, s as wants, min(place.seq) as seq, min(place.scan) as scan
          from place join /*schema*/subscription as s on s.name = place.subscription group by s.name) as first
    cross join lateral (
        select o.seq, o.id as event_id, o.event_type, o.aggregate_id, o.generation, o.occurred_at,
               /*schema*/concerns(o, first.wants) as concerns
        from /*schema*/outbox as o where o.seq > first.seq order by o.seq limit first.scan) as o
),
late_tx as materialized (
    select place.id, place.wants, place.scan, place.seq as until, owing.tx, place.owed_after as after
    from place cross join unnest(place.owing) as owing (tx)
    union all
    select place.id, place.wants, place.scan, place.seq, found.tx, place.floor
    from place cross join /*schema*/late_transactions(
        place.inflight, place.horizon, place.finished, place.floor, place.seq) as found (tx)
),
late as materialized (
    select late_tx.id, o.*
    from late_tx cross join lateral (
        select o.seq, o.id as event_id, o.event_type, o.aggregate_id, o.generation, o.occurred_at,
               /*schema*/concerns(o, late_tx.wants) as concerns
        from /*schema*/outbox as o
        where (o.tx, o.seq) > (late_tx.tx, late_tx.after) and (o.tx, o.seq) <= (late_tx.tx, late_tx.until)
          and o.seq > late_tx.after and o.seq <= late_tx.until
        order by o.tx, o.seq limit late_tx.scan) as o
),
unread as (
    select place.id, fresh.seq, fresh.event_id, fresh.event_type, fresh.aggregate_id, fresh.generation, fresh.occurred_at,
           fresh.concerns
    from fresh join place on place.subscription = fresh.subscription and fresh.seq > place.seq
    union all
    select late.* from late
),
owed as (
    select place.subscription, case place.kind when 'relay' then unread.event_type end as event_type,
           count(distinct unread.seq) as events, min(unread.occurred_at) as occurred_at
    from unread join place on place.id = unread.id
    where unread.concerns
      and place.partition = coalesce(hashtextextended(unread.aggregate_id, 0), unread.seq) & (place.partitions - 1)
      and place.generation = coalesce((select max(own.generation) from place as own
                                       where own.subscription = place.subscription
                                         and own.generation = unread.generation), 0)
      and not exists (select from /*schema*/withdrawal as w where w.seq = unread.seq)
      and not exists (select from /*schema*/delivery as d where d.subscription = place.subscription and d.seq = unread.seq)
      and not (place.kind = 'relay' and exists (select from /*schema*/stream_ahead as a
                                                where a.subscription = place.subscription and a.event_id = unread.event_id))
    group by 1, 2
),
found as (
    select owed.subscription, min(owed.occurred_at) as occurred_at,
           jsonb_agg(jsonb_build_array(owed.event_type, owed.events, owed.occurred_at))
               filter (where owed.event_type is not null) as types
    from owed group by owed.subscription
)
select s.name, found.occurred_at, found.occurred_at is not null or coalesce(looked.complete, true) as certain,
       coalesce(found.types, '[]'), coalesce(looked.complete, true) and coalesce(looked_back.complete, true)
from /*schema*/subscription as s
left join found on found.subscription = s.name
left join (select fresh.subscription, count(*) < min(fresh.scan) as complete from fresh group by fresh.subscription) as looked
    on looked.subscription = s.name
left join (select place.subscription, count(*) < min(place.scan) as complete
           from late join place on place.id = late.id where place.kind = 'relay' group by place.subscription) as looked_back
    on looked_back.subscription = s.name
