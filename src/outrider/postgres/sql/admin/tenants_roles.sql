-- tenants_roles: which of these roles exist.
select r.rolname::text from pg_roles as r where r.rolname = any (%(roles)s::text[]) order by 1
