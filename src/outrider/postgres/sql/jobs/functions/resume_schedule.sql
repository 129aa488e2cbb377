-- resume_schedule: let a paused schedule fire again. Audited.
-- The times of the pause get no job, except with missed = 'all': then the workers enqueue one for each. If the code that registered it
-- did not say, the workers decide, as after an outage.
-- Locks:  its row.
-- Returns whether it was paused.
create or replace function /*schema*/resume_schedule(p_name text, p_by text default null, p_reason text default null)
    returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    since timestamptz;
begin
    select s.paused_at into since from /*schema*/schedule as s where s.name = p_name for update;
    if not found then
        raise 'there is no schedule %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    update /*schema*/schedule as s
    set paused_at = null,
        fired_at = case when s.missed in ('once', 'skip') then greatest(s.fired_at, clock_timestamp()) else s.fired_at end
    where s.name = p_name and s.paused_at is not null;
    perform /*schema*/note('resume_schedule', p_by, p_reason, null, null, jsonb_strip_nulls(jsonb_build_object(
        'schedule', p_name, 'paused_since', since)));
    return since is not null;
end
$$;
