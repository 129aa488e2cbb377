-- canary_end: remove a canary: its event, receipt and subscription. p_event is null if its event is not known: then it stays in the log
-- until retention removes it.
-- Locks: its cursor, waiting for the worker that handles it.
create or replace function /*schema*/canary_end(p_name text, p_event uuid) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '10s'
as $$
begin
    perform /*schema*/sees_all(true);
    if p_name !~ '^outrider[.]canary_[0-9a-f]{8}$' then
        raise '% is no canary', p_name using errcode = 'OR001';
    end if;
    delete from /*schema*/subscription as s where s.name = p_name;
    delete from /*schema*/delivery as d where d.subscription = p_name;
    delete from /*schema*/event_handled as h where h.handler_name = p_name;
    delete from /*schema*/outbox as o where o.id = p_event and o.event_type = p_name;
end
$$;
