-- retry_job: let a job that is a dead letter run again, with all its attempts. See functions/replay.sql.
-- Returns a row for each subscription that has it as a dead letter.
select done.subscription, done.outcome
from /*schema*/replay(
    array(select j.id from /*schema*/job as j where j.id = any (/*schema*/owed_of(%(job_id)s::uuid)) and j.status = 'failed' order by j.id),
    %(by)s::text, p_reason => %(reason)s::text) as done
