-- register_schedule: insert or update a schedule. A new one starts now; a changed one continues from where it was.
-- Returns no row, and changes nothing, if the schedule belongs to another context.
-- Locks:  its row.
insert into /*schema*/schedule as s (name, context, job_type, cron, time_zone, fired_at, missed, job)
values (%(name)s, %(context)s, %(job_type)s, %(cron)s, %(time_zone)s, clock_timestamp(), %(missed)s,
        %(options)s::jsonb || jsonb_build_object('payload', %(payload)s::jsonb))
on conflict (name) do update
set context = excluded.context, job_type = excluded.job_type, cron = excluded.cron, time_zone = excluded.time_zone,
    missed = excluded.missed, job = excluded.job,
    updated_at = case when (s.cron, s.time_zone) = (excluded.cron, excluded.time_zone) then s.updated_at
                      else clock_timestamp() end
where s.context is null or s.context = excluded.context
returning s.name
