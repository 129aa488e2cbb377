-- run_now: a job does not wait for its time any more. See jobs/functions/run_now.sql.
select subscription, outcome from /*schema*/run_now(%(id)s::uuid, p_by => %(by)s::text, p_reason => %(reason)s::text)
