-- run_now: make a job that waits for its time due now. Audited if it was pending.
-- Locks:  the job, waiting up to 10 s for a transaction that enqueues onto it.
-- Returns one row per subscription: due, running, dead (a dead letter: replay it), done (it has a receipt), cancelled, or not_found
--         (no trace of it is kept; it has finished, or is unknown).
create or replace function /*schema*/run_now(
    p_job_id uuid, p_subscription text default null, p_by text default null, p_reason text default null
) returns table (subscription text, outcome text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set lock_timeout = '10s'
as $$
#variable_conflict use_column
declare
    job  /*schema*/job;
    seen boolean := false;
begin
    perform /*schema*/sees_all(true);
    for job in
        select d.* from /*schema*/job as d
        where d.id = any (/*schema*/owed_of(p_job_id)) and d.subscription = coalesce(p_subscription, d.subscription)
        order by d.id for update
    loop
        seen := true;
        subscription := job.subscription;
        outcome := case job.status when 'pending' then 'due' when 'in_flight' then 'running' when 'failed' then 'dead'
                                   else 'cancelled' end;
        if job.status = 'pending' then
            perform /*schema*/make_due(job);
            perform /*schema*/note('run_now', p_by, p_reason, job.subscription, p_job_id,
                                   jsonb_build_object('run_at', job.run_at));
        end if;
        return next;
    end loop;
    if not seen then
        return query select g.* from /*schema*/gone_job(p_job_id, p_subscription) as g;
    end if;
end
$$;
