-- job_types: the registered job types, and those that nobody has registered but that have pending jobs. Locks nothing.
-- Reads job_ready and job_scheduled, skipping from one type to the next.
with recursive owed as (
    select '' as name
    union all
    select next.name from owed
    cross join lateral (
        select min(first.name) as name from (
            (select j.subscription as name from /*schema*/job as j
             where j.subscription > owed.name and /*schema*/claimable(j) order by j.subscription limit 1)
            union all
            (select j.subscription from /*schema*/job as j
             where j.subscription > owed.name and j.waits_for = 'time' order by j.subscription limit 1)) as first) as next
    where next.name is not null
)
select owed.name from owed where owed.name <> ''
union
select s.name from /*schema*/subscription as s where s.kind = 'job'
order by 1
