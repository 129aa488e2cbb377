-- registered_schedule: a schedule as the table has it. By primary key.
select context, job_type, cron, time_zone from /*schema*/schedule where name = %(name)s
