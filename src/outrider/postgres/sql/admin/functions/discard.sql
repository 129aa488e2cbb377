-- discard: mark dead letters as discarded, so that nobody handles them. They stay with their history; replay with p_force brings
-- them back. Each is audited. Returns how many there were. Other deliveries are left alone.
create or replace function /*schema*/discard(p_deliveries bigint[], p_by text default null, p_reason text default null)
    returns integer
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
as $$
declare
    who       text := /*schema*/signed(p_by);
    why       text := left(p_reason, 2000);
    discarded integer;
begin
    perform /*schema*/sees_all(true);
    with gone as (
        update /*schema*/delivery as d
        set status = 'discarded',
            failure_history = d.failure_history || jsonb_strip_nulls(jsonb_build_object(
                'cycle', d.cycle, 'discarded_at', clock_timestamp(), 'by', who, 'reason', why))
        where d.id = any (p_deliveries) and d.status = 'failed'
        returning d.subscription, d.event_id, d.last_error_code, d.last_error,
                  d.queue is not null and d.seq is null as enqueued, d.workspace_id, d.job_key
    )
    insert into /*schema*/audit (by, action, subscription, event_id, details)
    select who, 'discard', gone.subscription, gone.event_id,
           jsonb_strip_nulls(jsonb_build_object('reason', why, 'code', gone.last_error_code, 'error', gone.last_error)
           -- Whose job it was: once it is gone, erase finds that nowhere else.
           || case when gone.enqueued then jsonb_build_object('workspace', gone.workspace_id, 'job', coalesce(gone.job_key, ''))
                   else '{}' end)
    from gone;
    get diagnostics discarded = row_count;
    return discarded;
end
$$;
