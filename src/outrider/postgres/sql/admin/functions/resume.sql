-- resume: let takes read a paused subscription again, or jobs of the type be claimed, and close its breaker. Audited.
-- Notifies its workers, which may be asleep.
-- Locks:  its row; then its cursors with an open breaker, waiting for the batches in progress.
-- Returns whether it was paused.
create or replace function /*schema*/resume(p_name text, p_by text default null, p_reason text default null)
    returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    since  timestamptz;
    closed bigint;
begin
    select s.paused_at into since from /*schema*/subscription as s where s.name = p_name for no key update;
    if not found then
        raise 'there is no subscription %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    update /*schema*/subscription as s set paused_at = null where s.name = p_name;
    update /*schema*/cursor as c set failures = 0, open_until = null
    where c.subscription = p_name and (c.failures > 0 or c.open_until is not null);
    get diagnostics closed = row_count;
    perform /*schema*/note('resume', p_by, p_reason, p_name, null, jsonb_strip_nulls(jsonb_build_object(
        'paused_since', since, 'breakers_closed', nullif(closed, 0))));
    perform /*schema*/wake(array[p_name]);
    return since is not null;
end
$$;
