-- overdue: what each subscription owes out of line and should have had its turn by now: since when, and how many, up to %(most)s.
-- A job whose lease has ended counts from then on: somebody should have reaped it. One branch for each partial index.
select s.name, s.kind, count(*), min(d.since)
from /*schema*/subscription as s
cross join lateral (
    select owed.since from (
        select d.run_at as since from /*schema*/delivery as d
        where d.subscription = s.name and d.status = 'pending' and d.head and d.reached and d.queue is null
          and d.run_at < clock_timestamp() - %(patience)s::interval
        union all
        select d.run_at from /*schema*/delivery as d
        where d.subscription = s.name and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
          and d.run_at < clock_timestamp() - %(patience)s::interval
        union all
        select d.run_at from /*schema*/delivery as d
        where d.subscription = s.name and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes > 0
          and d.run_at < clock_timestamp() - %(patience)s::interval
        union all
        select d.lease_expires_at from /*schema*/delivery as d
        where d.subscription = s.name and d.status = 'in_flight'
          and d.lease_expires_at < clock_timestamp() - %(patience)s::interval) as owed
    limit %(most)s) as d
where s.paused_at is null and not exists (select from /*schema*/setting as p where p.name = 'paused' and p.value <> 0)
group by s.name, s.kind order by 4
