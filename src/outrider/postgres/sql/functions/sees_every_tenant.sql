-- sees_every_tenant: whether no policy of ours holds this role back from the jobs of any tenant: for functions that run as their
-- owner, and ask on behalf of whoever is logged in.
create or replace function /*schema*/sees_every_tenant(p_role name) returns boolean
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select not c.relrowsecurity or r.rolsuper or r.rolbypassrls or exists (
        select from pg_policy as p cross join unnest(p.polroles) as held (role)
        where p.polrelid = c.oid and p.polname = 'every_tenant'
          and case held.role when 0 then true else pg_has_role(p_role, held.role, 'usage') end)
    from pg_class as c join pg_roles as r on r.rolname = p_role where c.oid = '/*schema*/delivery'::regclass
$$;
