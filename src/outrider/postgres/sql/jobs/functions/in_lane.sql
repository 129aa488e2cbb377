-- in_lane: whether a job is claimable and of this lane. Look-ups with it are by job_ready, in the order of claims.
create or replace function /*schema*/in_lane(p_job /*schema*/job, p_lane /*schema*/lane) returns boolean
    language sql immutable parallel safe
return p_job.subscription = p_lane.subscription and p_job.generation = p_lane.generation and p_job.queue = p_lane.queue
   and num_nonnulls(p_job.workspace_id) = p_lane.tenanted
   and p_job.status = 'pending' and p_job.waits_for is null and p_job.crashes = 0;
