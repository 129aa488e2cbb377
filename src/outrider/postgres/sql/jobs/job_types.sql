-- job_types: the registered job types, and those that nobody has registered but that have pending jobs. Locks nothing.
-- Reads delivery by job_due, skipping from one type to the next.
with recursive owed as (
    (select d.subscription as name from /*schema*/delivery as d
     where d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
     order by d.subscription limit 1)
    union all
    select next.subscription from owed
    cross join lateral (
        select d.subscription from /*schema*/delivery as d
        where d.subscription > owed.name and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
        order by d.subscription limit 1) as next
)
select owed.name from owed
union
select s.name from /*schema*/subscription as s where s.kind = 'job'
order by 1
