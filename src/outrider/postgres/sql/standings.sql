-- standings: every subscription, what it is and what it owes out of line. Locks nothing and reads no more of the log than one
-- event by seq; deliveries are counted up to `most`.
select s.name, s.kind, s.context, s.event_types, s.partitions, s.ordering, s.paused_at, parked.events, parked.occurred_at,
       (select count(*) from (select from /*schema*/delivery as d
                              where d.subscription = s.name and d.status = 'failed' limit %(most)s) as d) as dead
from /*schema*/subscription as s
cross join lateral (
    select count(*) as events, (select o.occurred_at from /*schema*/outbox as o where o.seq = min(d.seq)) as occurred_at
    from (select d.seq from /*schema*/delivery as d
          where d.subscription = s.name and d.status in ('pending', 'in_flight') limit %(most)s) as d) as parked
order by s.name
