-- standings: every subscription: what it is, and what it has to do. Locks nothing, and reads of the log only one event by seq.
-- Deliveries and jobs are counted up to `most`. Of jobs, the oldest that is due. due_at: since when the oldest has been overdue, as
-- in doctor/overdue.
select s.name, s.kind, s.context, s.event_types, s.partitions, s.ordering, s.paused_at, parked.events, parked.running,
       parked.occurred_at, parked.due_at,
       (select count(*) from (select from /*schema*/owed as d
                              where d.subscription = s.name and d.status = 'failed' limit %(most)s) as d) as dead
from /*schema*/subscription as s
cross join lateral (
    select count(*) as events, count(*) filter (where d.status = 'in_flight') as running,
           case s.kind when 'job' then min(d.run_at) filter (where d.status = 'pending' and d.run_at <= clock_timestamp())
                       else (select o.occurred_at from /*schema*/outbox as o where o.seq = min(d.seq)) end as occurred_at,
           min(d.due_at) filter (where d.due_at <= clock_timestamp()) as due_at
    from (select u.* from /*schema*/unfinished as u where u.subscription = s.name limit %(most)s) as d) as parked
order by s.name
