-- role_members: the names of the roles that are members of these roles. Reads the catalogue.
select r.rolname::text, array_agg(m.rolname::text order by m.rolname)
from pg_roles as r join pg_auth_members as a on a.roleid = r.oid join pg_roles as m on m.oid = a.member
where r.rolname = any (%(roles)s::text[]) group by r.rolname
