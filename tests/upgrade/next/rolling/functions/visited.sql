-- visited: read the new column, with the rights of the worker that takes.
create or replace function /*schema*/visited(p_subscription text) returns bigint
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (select sum(c.visits) from /*schema*/cursor as c where c.subscription = p_subscription);
end
$$;
