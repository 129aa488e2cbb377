-- pause_schedule: stop a schedule. Jobs that it has enqueued run. Audited.
-- Locks:  its row, waiting for a worker that fires it.
-- Returns since when it is paused; pausing twice keeps the first time.
create or replace function /*schema*/pause_schedule(p_name text, p_by text default null, p_reason text default null)
    returns timestamptz
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    since timestamptz;
begin
    update /*schema*/schedule as s set paused_at = coalesce(s.paused_at, now()) where s.name = p_name
    returning s.paused_at into since;
    if not found then
        raise 'there is no schedule %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    perform /*schema*/note('pause_schedule', p_by, p_reason, null, null,
                           jsonb_build_object('schedule', p_name, 'since', since));
    return since;
end
$$;
