-- discard: mark dead letters as discarded, so that nobody handles them. They stay with their history; replay with p_force brings
-- them back. Each is audited. Returns how many there were. p_deliveries: ids of deliveries and of jobs; what is no dead letter is
-- left alone.
create or replace function /*schema*/discard(p_deliveries bigint[], p_by text default null, p_reason text default null)
    returns integer
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
as $$
declare
    who       constant text := /*schema*/signed(p_by);
    mark      constant jsonb := jsonb_strip_nulls(jsonb_build_object(
        'discarded_at', clock_timestamp(), 'by', who, 'reason', left(p_reason, 2000)));
    discarded integer;
begin
    perform /*schema*/sees_all(true);
    with event as (
        update /*schema*/delivery as d
        set status = 'discarded', failure_history = d.failure_history || (jsonb_build_object('cycle', d.cycle) || mark)
        where d.id = any (p_deliveries) and d.status = 'failed'
        returning d.subscription, d.event_id, d.last_error_code, d.last_error
    ),
    job as (
        update /*schema*/job as j
        set status = 'discarded',
            failure_history = coalesce(j.failure_history, '[]') || (jsonb_build_object('cycle', j.cycle) || mark)
        where j.id = any (p_deliveries) and j.status = 'failed'
        returning j.subscription, j.event_id, j.last_error_code, j.last_error,
                  -- Whose job it was: once it is gone, erase finds that nowhere else.
                  case when j.seq is null then jsonb_build_object('workspace', j.workspace_id, 'job', coalesce(j.job_key, ''))
                       else '{}' end as whose
    )
    insert into /*schema*/audit (by, action, subscription, event_id, details)
    select who, 'discard', gone.subscription, gone.event_id, jsonb_strip_nulls(gone.whose || jsonb_build_object(
        'reason', left(p_reason, 2000), 'code', gone.last_error_code, 'error', gone.last_error))
    from (select event.*, '{}'::jsonb as whose from event union all select job.* from job) as gone;
    get diagnostics discarded = row_count;
    return discarded;
end
$$;
