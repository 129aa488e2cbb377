-- enqueue_jobs: jobs without unique keys, in one statement of the caller's transaction. Locks nothing, and reads nothing: it
-- needs the right to insert, and no other. The jobs are inserted in the order given, because the scan of a function keeps its order.
-- Columns in which the jobs differ travel as arrays; what all have in common travels once, as in enqueue_job.
with made as (
    insert into /*schema*/job (event_id, /*columns*/)
    select j.id, /*values*/
    from unnest(%(id)s::text::uuid[], /*arrays*/) as j (id, /*names*/)
)
select count(/*schema*/notify(%(wake_channel)s::text, w.job_type) is null)
from unnest(%(wake_types)b::text[]) as w (job_type) where %(notify)s::boolean
