-- run_now: make a job that waits for its time due now. Audited if it was pending.
-- Locks:  the job.
-- Returns one row per subscription: due, running, dead (a dead letter: replay it), done (it has a receipt), cancelled, or not_found
--         (no trace of it is kept; it has finished, or is unknown).
create or replace function /*schema*/run_now(
    p_job_id uuid, p_subscription text default null, p_by text default null, p_reason text default null
) returns table (subscription text, outcome text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    job  /*schema*/delivery;
    seen boolean := false;
begin
    perform /*schema*/sees_all(true);
    for job in
        select d.* from /*schema*/delivery as d
        where d.event_id = p_job_id and d.queue is not null and d.subscription = coalesce(p_subscription, d.subscription)
        order by d.id for update
    loop
        seen := true;
        subscription := job.subscription;
        outcome := case job.status when 'pending' then 'due' when 'in_flight' then 'running' when 'failed' then 'dead'
                                   else 'cancelled' end;
        if job.status = 'pending' then
            update /*schema*/delivery as d set run_at = least(d.run_at, clock_timestamp()) where d.id = job.id;
            perform /*schema*/notify(
                /*schema*/generation_channel(job.generation),
                job.subscription);
            perform /*schema*/note('run_now', p_by, p_reason, job.subscription, p_job_id,
                                   jsonb_build_object('run_at', job.run_at));
        end if;
        return next;
    end loop;
    if not seen then
        return query
        select h.handler_name, 'done' from /*schema*/subscription as s
        left join lateral (select o.* from /*schema*/outbox as o where o.id = p_job_id limit 1) as o on true
        join /*schema*/event_handled as h
            on h.handler_name = s.name
           and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, p_job_id)
        where s.kind = 'job' and s.name = coalesce(p_subscription, s.name);
        if not found then
            subscription := p_subscription;
            outcome := 'not_found';
            return next;
        end if;
    end if;
end
$$;
