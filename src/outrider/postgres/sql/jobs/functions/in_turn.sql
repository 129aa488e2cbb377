-- in_turn: whether a job is claimable, of this lane and of a tenant. Look-ups with it and the hash of its workspace use job_turn.
create or replace function /*schema*/in_turn(p_job /*schema*/job, p_lane /*schema*/lane) returns boolean
    language sql immutable parallel safe
return p_job.subscription = p_lane.subscription and p_job.generation = p_lane.generation and p_job.queue = p_lane.queue
   and p_job.workspace_id is not null
   and p_job.status = 'pending' and p_job.waits_for is null and p_job.crashes = 0;
