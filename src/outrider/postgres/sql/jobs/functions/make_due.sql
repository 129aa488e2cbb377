-- make_due: make a pending job due now, and notify its workers. The callers are run_now and change_jobs, which have locked it and audit.
create or replace function /*schema*/make_due(p_job /*schema*/job) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update /*schema*/job as d set run_at = least(d.run_at, clock_timestamp()) where d.id = p_job.id;
    perform /*schema*/notify(/*schema*/generation_channel(p_job.generation), p_job.subscription);
end
$$;
