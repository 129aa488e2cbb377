-- overdue: what each subscription should have done by now: since when, and how many, up to `most`.
-- A job whose lease has expired counts from then on, because it should have been reaped. Of the jobs that wait for their key, the
-- first of each key of which no job runs counts. `job_types`: of those that are not registered, pending jobs count, too.
select s.name, s.kind, count(*), min(d.since)
from (select r.name, r.kind, r.paused_at from /*schema*/subscription as r
      union all
      select t.name, 'unregistered', null from unnest(%(job_types)s::text[]) as t (name)
      where not exists (select from /*schema*/subscription as r where r.name = t.name)) as s
cross join lateral (
    select late.since from (
        select u.due_at as since from /*schema*/unfinished as u
        where u.subscription = s.name and u.due_at < clock_timestamp() - %(patience)s::interval
        union all
        select key.run_at from (
            with recursive waiting as (
                (select coalesce(j.workspace_id, '') as tenant, j.job_key, j.run_at from /*schema*/job as j
                 where j.subscription = s.name and j.waits_for = 'key'
                 order by coalesce(j.workspace_id, ''), j.job_key limit 1)
                union all
                select next.* from waiting
                cross join lateral (
                    select coalesce(j.workspace_id, ''), j.job_key, j.run_at from /*schema*/job as j
                    where j.subscription = s.name and j.waits_for = 'key'
                      and (coalesce(j.workspace_id, ''), j.job_key) > (waiting.tenant, waiting.job_key)
                    order by coalesce(j.workspace_id, ''), j.job_key limit 1) as next
            )
            select waiting.* from waiting) as key
        where key.run_at < clock_timestamp() - %(patience)s::interval and not exists (
            select from /*schema*/job as j
            where j.subscription = s.name and j.status = 'in_flight' and j.job_key = key.job_key
              and coalesce(j.workspace_id, '') = key.tenant)) as late
    limit %(most)s) as d
where s.paused_at is null and not exists (select from /*schema*/setting as p where p.name = 'paused' and p.value <> 0)
group by s.name, s.kind order by 4
