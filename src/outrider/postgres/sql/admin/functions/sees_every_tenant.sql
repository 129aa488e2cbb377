-- sees_every_tenant: whether no policy hides events and jobs of any tenant from this role. False for an unknown role.
create or replace function /*schema*/sees_every_tenant(p_role name) returns boolean
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(bool_and(not c.relrowsecurity or r.rolsuper or r.rolbypassrls or (
        exists (select from pg_policy as p cross join unnest(p.polroles) as held (role)
                where p.polrelid = c.oid and p.polname = 'every_tenant'
                  and case held.role when 0 then true else pg_has_role(p_role, held.role, 'usage') end)
        and not exists (select from pg_policy as p where p.polrelid = c.oid and not p.polpermissive))), false)
    from pg_class as c cross join pg_roles as r
    where r.rolname = p_role and c.oid in ('/*schema*/outbox'::regclass, '/*schema*/delivery'::regclass, '/*schema*/job'::regclass)
$$;
