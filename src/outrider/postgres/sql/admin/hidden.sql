-- hidden: the current role, quoted, if one of our policies hides rows of other tenants from it; no row if it sees all.
-- The same rule as sees_all, for roles that may not call it and for schemas without it. Reads the catalogue.
select quote_ident(current_user)
where exists (
    select from pg_class as c
    where c.oid in ('/*schema*/outbox'::regclass, '/*schema*/delivery'::regclass, '/*schema*/job'::regclass) and row_security_active(c.oid)
      and (exists (select from pg_policy as p where p.polrelid = c.oid and not p.polpermissive)
           or not exists (select from pg_policy as p cross join unnest(p.polroles) as held (role)
                          where p.polrelid = c.oid and p.polname = 'every_tenant'
                            and case held.role when 0 then true else pg_has_role(held.role, 'usage') end)))
