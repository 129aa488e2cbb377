-- registered_schedule: the context of a schedule, and whether the table has it as it is declared. By primary key.
select s.context, (s.context, s.job_type, s.cron, s.time_zone, s.missed, s.job) is not distinct from (
    %(context)s, %(job_type)s, %(cron)s, %(time_zone)s, %(missed)s,
    %(options)s::jsonb || jsonb_build_object('payload', %(payload)s::jsonb))
from /*schema*/schedule as s where s.name = %(name)s
