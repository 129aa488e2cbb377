-- job_counts: how many jobs of these types are in each state, in one queue or in all; counted up to `most`.
-- Locks nothing. Reads delivery by index, as many rows as it counts; with a queue, all of a type.
with wanted as materialized (select %(names)s::text[] as names, %(queue)s::text as queue)
select 'running' as state, count(*) as jobs from (
    select from /*schema*/delivery as d, wanted
    where d.status = 'in_flight' and d.subscription = any (wanted.names)
      and (wanted.queue is null or d.queue = wanted.queue)
    limit %(most)s) as d
union all
select 'pending', count(*) from (
    -- In three parts, as they are indexed.
    (select from /*schema*/delivery as d, wanted
     where d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
       and d.subscription = any (wanted.names) and (wanted.queue is null or d.queue = wanted.queue)
     limit %(most)s)
    union all
    (select from /*schema*/delivery as d, wanted
     where d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes > 0
       and d.subscription = any (wanted.names) and (wanted.queue is null or d.queue = wanted.queue)
     limit %(most)s)
    union all
    (select from /*schema*/delivery as d, wanted
     where d.job_key is not null and d.queue is not null and d.waiting
       and d.subscription = any (wanted.names) and (wanted.queue is null or d.queue = wanted.queue)
     limit %(most)s)
    limit %(most)s) as d
union all
select 'failed', count(*) from (
    select from /*schema*/delivery as d, wanted
    where d.status = 'failed' and d.queue is not null and d.subscription = any (wanted.names)
      and (wanted.queue is null or d.queue = wanted.queue)
    limit %(most)s) as d
