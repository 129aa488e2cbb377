-- tenants_state: whether policies separate the tenants, for which roles they do not, and where there is a hole. Reads the catalogue.
select t.relname::text, t.relrowsecurity, t.relforcerowsecurity,
       exists (select from pg_policy as p where p.polrelid = t.oid and p.polname = 'own_workspace'),
       coalesce((select array_agg(coalesce(r.rolname::text, 'public') order by r.rolname)
                 from pg_policy as p cross join unnest(p.polroles) as u (role) left join pg_roles as r on r.oid = u.role
                 where p.polrelid = t.oid and p.polname = 'every_tenant'), '{}') as roles,
       -- Segments without row security that a role other than the owner may read: they bypass the log's policies.
       coalesce((select array_agg(s.name order by s.first_seq) from /*schema*/segment as s
                 join pg_class as c on c.relnamespace = t.relnamespace and c.relname = s.name
                 where t.relname = 'outbox' and not c.relrowsecurity
                   and exists (select from aclexplode(c.relacl) as a where a.grantee <> c.relowner)), '{}') as open,
       coalesce((select array_agg(r.rolname::text order by r.rolname) from pg_roles as r
                 where (r.rolbypassrls or r.rolsuper) and r.rolcanlogin), '{}') as above,
       coalesce((select array_agg(r.rolname::text order by r.rolname) from pg_roles as r
                 where not r.rolbypassrls and not r.rolsuper and r.rolname !~ '^pg_' and has_table_privilege(r.oid, t.oid, 'select')
                   and not exists (
                       select from pg_policy as p cross join unnest(p.polroles) as u (role)
                       where p.polrelid = t.oid and p.polname = 'every_tenant'
                         and case u.role when 0 then true else pg_has_role(r.oid, u.role, 'usage') end)), '{}') as held
from pg_class as t where t.oid in ('/*schema*/outbox'::regclass, '/*schema*/delivery'::regclass, '/*schema*/job'::regclass)
order by t.relname desc
