-- cancel: cancel a job, or ask its worker to stop it. Audited.
-- Locks:  the job, waiting up to 10 s for a transaction that enqueues onto it.
-- Returns one row per subscription, because one event may be several jobs: cancelled or cancelling (see cancel_job); done: it has a
--         receipt; not_found: no trace of it is kept; it has finished, or is unknown.
create or replace function /*schema*/cancel(
    p_job_id uuid, p_by text default null, p_reason text default null, p_subscription text default null
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
        outcome := /*schema*/cancel_job(job, p_by, p_reason);
        if job.status <> 'discarded' then
            perform /*schema*/note('cancel', p_by, p_reason, job.subscription, p_job_id,
                                   jsonb_build_object('status', job.status));
        end if;
        return next;
    end loop;
    if not seen then
        return query select g.* from /*schema*/gone_job(p_job_id, p_subscription) as g;
    end if;
end
$$;
