-- pause: stop takes of a subscription, or claims of a job type; work in progress is finished. Audited.
-- Locks:  its row.
-- Returns since when it is paused; pausing twice keeps the first time.
create or replace function /*schema*/pause(p_name text, p_by text default null, p_reason text default null)
    returns timestamptz
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    since timestamptz;
begin
    update /*schema*/subscription as s set paused_at = coalesce(s.paused_at, now()) where s.name = p_name
    returning s.paused_at into since;
    if not found then
        raise 'there is no subscription %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    perform /*schema*/note('pause', p_by, p_reason, p_name, null, jsonb_build_object('since', since));
    return since;
end
$$;
