-- relay_take: take for relays, run as the owner, so that whoever relays needs no right to write receipts.
create or replace function /*schema*/relay_take(p_subscription text, p_limit integer, p_scan integer, p_knows text[])
    returns setof /*schema*/taken
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/relay_only(p_subscription);
    return query select * from /*schema*/take(p_subscription, 0, p_limit, p_scan, 0, p_knows);
end
$$;
