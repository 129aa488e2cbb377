-- hold_limits: whoever claims jobs of a type that is limited does it alone, until the transaction ends. First of all, before
-- any job is locked, and in the order of the names: so nobody waits for another in a circle.
-- Locks:  the rows of these types in job_limit, which nobody but the owner may touch; an advisory lock could be anybody's. Not
--         those in subscription: withdraw and erase hold them while they wait for batches.
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
