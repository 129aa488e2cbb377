-- run_schedule: enqueue the job of a schedule now, beside its times, also while it is paused. Audited with the job's id.
-- The job is the one that was registered. It gets the newest generation whose workers serve it and its queue.
-- Locks:  the schedule's row.
-- Returns the id of the job.
create or replace function /*schema*/run_schedule(p_name text, p_by text default null, p_reason text default null)
    returns uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
as $$
declare
    asked /*schema*/schedule;
    made  uuid;
begin
    perform /*schema*/sees_all(true);
    update /*schema*/schedule as s set enqueued_at = clock_timestamp() where s.name = p_name and s.job is not null
    returning s.* into asked;
    if not found then
        if exists (select from /*schema*/schedule as s where s.name = p_name) then
            raise 'the job of % is not known here: run outrider migrate --app for its app', p_name using errcode = 'OR010';
        end if;
        raise 'there is no schedule %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    made := (/*schema*/enqueue_one(
        asked.job_type, asked.job -> 'payload', null, null, (asked.job ->> 'priority')::integer, null, 'keep',
        asked.job ->> 'queue', asked.job ->> 'key', (asked.job ->> 'version')::integer, asked.job ->> 'source',
        asked.job ->> 'workspace_id', null, coalesce((
            select max(w.generation) from /*schema*/worker as w
            where /*schema*/has_workers(asked.job_type, w.generation, asked.job ->> 'queue')), 0))).job_id;
    perform /*schema*/note('run_schedule', p_by, p_reason, asked.job_type, made, jsonb_build_object('schedule', p_name));
    return made;
end
$$;
