-- rewrite: write the row that release has decided on. The caller has locked it.
create or replace function /*schema*/rewrite(p_job /*schema*/job) returns void
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    update /*schema*/job as d
    set status = p_job.status, run_at = p_job.run_at, attempts = p_job.attempts, crashes = p_job.crashes,
        buried_at = p_job.buried_at, last_error_code = p_job.last_error_code, last_error = p_job.last_error,
        last_traceback = p_job.last_traceback,
        fingerprint = case when p_job.last_error_code is not null
                           then /*schema*/error_fingerprint(p_job.last_error_code, p_job.last_error) end,
        first_failed_at = p_job.first_failed_at, failure_history = p_job.failure_history, locked_by = null,
        locked_at = null, lease_token = null, lease_expires_at = null, cancelled_at = null, superseded_at = null, closed = false
    where d.id = p_job.id
$$;
