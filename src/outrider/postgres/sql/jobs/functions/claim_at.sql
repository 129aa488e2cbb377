-- claim_at: the place of a job in the order of claims: run_at, a minute earlier for each step of priority. The expression of job_ready,
-- which the planner inlines.
create or replace function /*schema*/claim_at(p_job /*schema*/job) returns timestamp
    language sql immutable parallel safe
return (p_job.run_at at time zone 'UTC') - p_job.priority * interval '1 minute';
