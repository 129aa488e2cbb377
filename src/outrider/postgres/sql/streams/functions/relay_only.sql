-- relay_only: raise an error unless the subscription is a relay. By primary key.
-- The functions of relays run as the owner, and must not touch the cursor of another subscription.
create or replace function /*schema*/relay_only(p_subscription text) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/sees_all(true);
    if not exists (select from /*schema*/subscription as s where s.name = p_subscription and s.kind = 'relay') then
        raise 'there is no relay %', quote_nullable(left(p_subscription, 100))
            using errcode = 'OR002', hint = 'Register it first: app.migrate() or outrider migrate --app.';
    end if;
end
$$;
