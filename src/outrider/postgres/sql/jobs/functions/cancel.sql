-- cancel: cancel a job, or ask its worker to stop it. Audited.
-- Locks:  the job.
-- Returns one row per subscription, because one event may be several jobs. cancelled: it was pending or a dead letter, and is
--         discarded now. cancelling: it is running, and its worker was notified. done: it has a receipt.
--         not_found: no trace of it is kept; it has finished, or is unknown.
create or replace function /*schema*/cancel(
    p_job_id uuid, p_by text default null, p_reason text default null, p_subscription text default null
) returns table (subscription text, outcome text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    job  /*schema*/delivery;
    who  text := /*schema*/signed(p_by);
    why  text := left(p_reason, 2000);
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
        if job.status = 'in_flight' then
            update /*schema*/delivery as d set cancelled_at = coalesce(d.cancelled_at, now()) where d.id = job.id;
            perform /*schema*/notify(
                /*schema*/generation_channel(job.generation),
                job.subscription);
            outcome := 'cancelling';
        elsif job.status in ('pending', 'failed') then
            update /*schema*/delivery as d
            set status = 'discarded', waiting = false, last_error_code = 'cancelled',
                last_error = coalesce(why, 'it was cancelled before it ran'), last_traceback = null,
                failure_history = d.failure_history || jsonb_strip_nulls(jsonb_build_object(
                    'cycle', d.cycle, 'cancelled_at', clock_timestamp(), 'by', who, 'reason', why))
            where d.id = job.id;
            outcome := 'cancelled';
        else
            outcome := 'cancelled';
        end if;
        if job.status <> 'discarded' then
            perform /*schema*/note('cancel', p_by, p_reason, job.subscription, p_job_id,
                                   jsonb_build_object('status', job.status));
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
