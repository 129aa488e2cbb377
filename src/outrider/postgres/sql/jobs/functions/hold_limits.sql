-- hold_limits: lock the limits of these types, so that only one claim of a limited type runs at a time.
-- Called before any job is locked, and in the order of the names, so that no deadlock is possible.
-- Locks:  the rows of these types in job_limit, which only the owner can touch; anybody could hold an advisory lock. Not their rows
--         in subscription: withdraw and erase hold those while they wait for batches.
create or replace function /*schema*/hold_limits(p_names text[]) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    limited constant text[] := array(
        select s.name from /*schema*/subscription as s
        where s.name = any (p_names) and (s.concurrency is not null or s.key_concurrency is not null));
begin
    insert into /*schema*/job_limit (subscription)
    select n.name from unnest(limited) as n (name)
    where not exists (select from /*schema*/job_limit as l where l.subscription = n.name)
    order by n.name
    on conflict do nothing;
    perform from /*schema*/job_limit as l where l.subscription = any (limited) order by l.subscription for update;
end
$$;
