-- cancel_job: cancel one job, or ask its worker to stop it. The callers are cancel and change_jobs, which have locked it and audit.
-- Returns cancelled: it was pending or a dead letter, and is discarded now, or it was discarded before. cancelling: it is running, and
-- its worker was notified.
create or replace function /*schema*/cancel_job(p_job /*schema*/job, p_by text, p_reason text) returns text
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    why constant text := left(p_reason, 2000);
begin
    if p_job.status = 'in_flight' then
        update /*schema*/job as d set cancelled_at = coalesce(d.cancelled_at, now()) where d.id = p_job.id;
        perform /*schema*/notify(/*schema*/generation_channel(p_job.generation), p_job.subscription);
        return 'cancelling';
    end if;
    if p_job.status in ('pending', 'failed') then
        update /*schema*/job as d
        set status = 'discarded', waits_for = null, last_error_code = 'cancelled',
            last_error = coalesce(why, 'it was cancelled before it ran'), fingerprint = null, last_traceback = null,
            failure_history = coalesce(d.failure_history, '[]') || jsonb_strip_nulls(jsonb_build_object(
                'cycle', d.cycle, 'cancelled_at', clock_timestamp(), 'by', /*schema*/signed(p_by), 'reason', why))
        where d.id = p_job.id;
    end if;
    return 'cancelled';
end
$$;
