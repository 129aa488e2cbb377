-- hidden: the role that asks, as SQL writes it, if a policy of ours hides rows of other tenants from it; no row when it sees all.
-- The same as the function sees_all decides, for those who may not call it and for schemas without it. Reads the catalogue.
select quote_ident(current_user)
where exists (
    select from pg_class as c
    where c.oid in ('/*schema*/outbox'::regclass, '/*schema*/delivery'::regclass) and row_security_active(c.oid)
      and (exists (select from pg_policy as p where p.polrelid = c.oid and not p.polpermissive)
           or not exists (select from pg_policy as p cross join unnest(p.polroles) as held (role)
                          where p.polrelid = c.oid and p.polname = 'every_tenant'
                            and case held.role when 0 then true else pg_has_role(held.role, 'usage') end)))
