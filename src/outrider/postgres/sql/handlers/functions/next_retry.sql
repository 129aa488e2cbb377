-- next_retry: seconds until the next parked event of a generation of the subscription may be tried; null if none is parked.
create or replace function /*schema*/next_retry(p_subscription text, p_generation bigint) returns double precision
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select extract(epoch from min(greatest(next.run_at, case when c.open_until > now() then c.open_until end)) - now())
        from /*schema*/cursor as c cross join lateral (
            select min(d.run_at) as run_at from /*schema*/delivery as d
            where d.subscription = p_subscription and d.generation = p_generation and d.partition = c.partition
              and d.status = 'pending' and d.head and d.reached) as next
        where c.subscription = p_subscription and c.generation = p_generation);
end
$$;
