-- relay_hold: lock the cursor of a relay until the transaction ends, and return its position; no row if another session holds it.
create or replace function /*schema*/relay_hold(p_subscription text) returns setof bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/relay_only(p_subscription);
    return query
    select c.seq from /*schema*/cursor as c where c.subscription = p_subscription and c.generation = 0 and c.partition = 0
    for update skip locked;
end
$$;
