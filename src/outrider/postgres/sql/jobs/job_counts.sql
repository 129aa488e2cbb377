-- job_counts: how many jobs of these types are in each state, in one queue or in all; counted up to `most`.
-- Locks nothing. Reads jobs by index, as many rows as it counts; with a queue, all of a type.
with wanted as materialized (select %(names)s::text[] as names, %(queue)s::text as queue)
select 'running' as state, count(*) as jobs from (
    select from /*schema*/job as j, wanted
    where j.status = 'in_flight' and j.subscription = any (wanted.names) and (wanted.queue is null or j.queue = wanted.queue)
    limit %(most)s) as j
union all
select 'pending', count(*) from (
    -- In four parts, as they are indexed.
    (select from /*schema*/job as j, wanted
     where /*schema*/claimable(j)
       and j.subscription = any (wanted.names) and (wanted.queue is null or j.queue = wanted.queue)
     limit %(most)s)
    union all
    (select from /*schema*/job as j, wanted
     where j.status = 'pending' and j.waits_for is null and j.crashes > 0
       and j.subscription = any (wanted.names) and (wanted.queue is null or j.queue = wanted.queue)
     limit %(most)s)
    union all
    (select from /*schema*/job as j, wanted
     where j.waits_for = 'time' and j.subscription = any (wanted.names) and (wanted.queue is null or j.queue = wanted.queue)
     limit %(most)s)
    union all
    (select from /*schema*/job as j, wanted
     where j.waits_for = 'key' and j.subscription = any (wanted.names) and (wanted.queue is null or j.queue = wanted.queue)
     limit %(most)s)
    limit %(most)s) as j
union all
select 'failed', count(*) from (
    select from /*schema*/job as j, wanted
    where j.status = 'failed' and j.subscription = any (wanted.names) and (wanted.queue is null or j.queue = wanted.queue)
    limit %(most)s) as j
