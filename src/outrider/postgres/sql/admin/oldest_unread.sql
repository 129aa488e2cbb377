-- oldest_unread: when the oldest unread event of each subscription occurred, and whether that is certain.
-- Reads at most `scan` rows behind the cursors, and of each late transaction. By seq and by (tx, seq), as in read. Null and certain:
-- there is none.
with place as materialized (
    select s.kind, s.event_types, s.context, s.partitions, s.workspace_id, s.forwards, c.*,
           -- Restored from elsewhere, where all its transactions are over: the rule is that of read.
           case when c.cluster <> (select /*schema*/log_home())
                     or c.horizon >= pg_snapshot_xmax(pg_current_snapshot())
                then '9223372036854775807:9223372036854775807:'::pg_snapshot else pg_current_snapshot() end as finished
    from /*schema*/cursor as c join /*schema*/subscription as s on s.name = c.subscription
),
fresh as materialized (
    select first.subscription, o.*
    from (select place.subscription, min(place.seq) as seq from place group by place.subscription) as first
    cross join lateral (
        select o.seq, o.event_type, o.target, o.origin, o.workspace_id, o.aggregate_id, o.generation, o.occurred_at
        from /*schema*/outbox as o where o.seq > first.seq order by o.seq limit %(scan)s) as o
),
late_tx as materialized (
    select place.id, place.seq as until, owing.tx, place.owed_after as after
    from place cross join unnest(place.owing) as owing (tx)
    union all
    select place.id, place.seq, found.tx, place.floor
    from place cross join /*schema*/late_transactions(
        place.inflight, place.horizon, place.finished, place.floor, place.seq) as found (tx)
),
late as (
    select late_tx.id, o.*
    from late_tx cross join lateral (
        select o.seq, o.event_type, o.target, o.origin, o.workspace_id, o.aggregate_id, o.generation, o.occurred_at
        from /*schema*/outbox as o
        where (o.tx, o.seq) > (late_tx.tx, late_tx.after) and (o.tx, o.seq) <= (late_tx.tx, late_tx.until)
          and o.seq > late_tx.after and o.seq <= late_tx.until
        order by o.tx, o.seq limit %(scan)s) as o
),
unread as (
    select place.id, fresh.seq, fresh.event_type, fresh.target, fresh.origin, fresh.workspace_id, fresh.aggregate_id,
           fresh.generation, fresh.occurred_at
    from fresh join place on place.subscription = fresh.subscription and fresh.seq > place.seq
    union all
    select late.* from late
),
owed as (
    select place.subscription, min(unread.occurred_at) as occurred_at
    from unread join place on place.id = unread.id
    where (place.event_types is null or unread.event_type = any (place.event_types))
      and case place.kind when 'relay' then (place.forwards or unread.origin is null)
                                            and (place.workspace_id is null or unread.workspace_id = place.workspace_id)
                          else unread.target is null or unread.target = place.context end
      and place.partition = coalesce(hashtextextended(unread.aggregate_id, 0), unread.seq) & (place.partitions - 1)
      and place.generation = coalesce((select max(own.generation) from place as own
                                       where own.subscription = place.subscription
                                         and own.generation = unread.generation), 0)
      and not exists (select from /*schema*/withdrawal as w where w.seq = unread.seq)
      and not exists (select from /*schema*/delivery as d where d.subscription = place.subscription and d.seq = unread.seq)
    group by place.subscription
)
select s.name, owed.occurred_at, owed.occurred_at is not null or coalesce(looked.events, 0) < %(scan)s as certain
from /*schema*/subscription as s
left join owed on owed.subscription = s.name
left join (select fresh.subscription, count(*) as events from fresh group by fresh.subscription) as looked
    on looked.subscription = s.name
