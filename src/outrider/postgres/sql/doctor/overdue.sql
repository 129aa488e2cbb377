-- overdue: what each subscription has in delivery that should have run by now: since when, and how many, up to `most`.
-- A job whose lease has expired counts from then on, because it should have been reaped. Of the jobs that wait for their key, the
-- first of each key of which no job runs counts. One branch for each partial index.
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
          and d.lease_expires_at < clock_timestamp() - %(patience)s::interval
        union all
        select key.run_at from (
            with recursive waiting as (
                (select coalesce(w.workspace_id, '') as tenant, w.job_key, w.run_at from /*schema*/delivery as w
                 where w.subscription = s.name and w.waiting
                 order by coalesce(w.workspace_id, ''), w.job_key limit 1)
                union all
                select next.* from waiting
                cross join lateral (
                    select coalesce(w.workspace_id, ''), w.job_key, w.run_at from /*schema*/delivery as w
                    where w.subscription = s.name and w.waiting
                      and (coalesce(w.workspace_id, ''), w.job_key) > (waiting.tenant, waiting.job_key)
                    order by coalesce(w.workspace_id, ''), w.job_key limit 1) as next
            )
            select waiting.* from waiting) as key
        where key.run_at < clock_timestamp() - %(patience)s::interval and not exists (
            select from /*schema*/delivery as d
            where d.subscription = s.name and d.status = 'in_flight' and d.job_key = key.job_key
              and coalesce(d.workspace_id, '') = key.tenant)) as owed
    limit %(most)s) as d
where s.paused_at is null and not exists (select from /*schema*/setting as p where p.name = 'paused' and p.value <> 0)
group by s.name, s.kind order by 4
