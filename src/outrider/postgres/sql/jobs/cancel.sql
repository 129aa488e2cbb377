-- cancel a job. See jobs/functions/cancel.sql.
select subscription, outcome from /*schema*/cancel(%(id)s::uuid, %(by)s::text, %(reason)s::text)
