-- claimable: whether a job may be claimed now. A suspect is claimed apart (pick_suspect). The predicate of job_ready and job_turn.
create or replace function /*schema*/claimable(p_job /*schema*/job) returns boolean
    language sql immutable parallel safe
return p_job.status = 'pending' and p_job.waits_for is null and p_job.crashes = 0;
