-- register_job: the limits of a job type. See jobs/functions/register_job.sql.
select /*schema*/register_job(
    %(name)s::text, %(lease)s::interval, %(timeout)s::interval, %(concurrency)s::int, %(key_concurrency)s::int)
