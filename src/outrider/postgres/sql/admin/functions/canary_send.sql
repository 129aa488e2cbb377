-- canary_send: publish the event of a canary on the channel of a generation, as publish does. Returns its id.
-- Its target is a context that no app can have (config), and relays leave its type out (wanted): only its own subscription gets it.
create or replace function /*schema*/canary_send(p_name text, p_generation bigint) returns uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
as $$
begin
    perform /*schema*/sees_all(true);
    if not exists (select from /*schema*/subscription as s where s.name = p_name and p_name like 'outrider.canary\_%') then
        raise 'there is no canary %', p_name using errcode = 'OR001';
    end if;
    perform set_config('outrider.generation', p_generation::text, true), set_config('app.workspace_id', '', true);
    return /*schema*/publish(p_name, '{}', source => 'outrider', target => 'outrider');
end
$$;
