-- owed: what each subscription would lose, exactly: unread events, late ones included, parked ones and dead letters. Reads the whole
-- backlog. A parked event that the log was not yet read up to counts once, as parked. Jobs of types that nobody has registered count too.
-- Exact under hold: without it, open transactions may still commit events.
-- Both owing and inflight count: while one is read in pages, transactions of the other may finish.
-- elsewhere: the cursor was restored from elsewhere, where all its transactions are over: the rule is that of read.
with place as (
    select c.*, s as wants, s.partitions,
           case when c.cluster <> (select /*schema*/log_home())
                     or c.horizon >= pg_snapshot_xmax(pg_current_snapshot())
                then '9223372036854775807:9223372036854775807:'::pg_snapshot else pg_current_snapshot() end as finished
    from /*schema*/cursor as c join /*schema*/subscription as s on s.name = c.subscription
),
late_tx as materialized (
    select place.subscription, place.wants, place.partition, place.partitions, owing.tx, place.owed_after as after, place.seq as until
    from place cross join unnest(place.owing) as owing (tx)
    union all
    select place.subscription, place.wants, place.partition, place.partitions, found.tx, place.floor, place.seq
    from place cross join /*schema*/late_transactions(
        place.inflight, place.horizon, place.finished, place.floor, place.seq) as found (tx)
),
first as materialized (
    select place.subscription, place.partitions, min(place.seq) as seq from place group by 1, 2
),
unread as (
    select first.subscription, o.seq, /*schema*/concerns(o, place.wants) as concerns
    from first join /*schema*/outbox as o on o.seq > first.seq
    join place on place.subscription = first.subscription and o.seq > place.seq
                  and place.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (first.partitions - 1)
    union
    select late_tx.subscription, o.seq, /*schema*/concerns(o, late_tx.wants)
    from late_tx join /*schema*/outbox as o
        on o.tx = late_tx.tx and o.seq > late_tx.after and o.seq <= late_tx.until
           and late_tx.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (late_tx.partitions - 1)
),
wanted as (
    select unread.subscription, count(*) as events
    from unread
    where unread.concerns
      and not exists (select from /*schema*/delivery as d
                      where d.subscription = unread.subscription and d.seq = unread.seq)
    group by 1
)
select name.name, coalesce(wanted.events, 0) as unread, owed.parked, owed.dead
from (select s.name from /*schema*/subscription as s
      union select d.subscription from /*schema*/owed as d where d.status in ('pending', 'in_flight', 'failed')) as name
left join wanted on wanted.subscription = name.name
cross join lateral (
    select count(*) filter (where d.status in ('pending', 'in_flight')) as parked, count(*) filter (where d.status = 'failed') as dead
    from /*schema*/owed as d where d.subscription = name.name) as owed
order by name.name
