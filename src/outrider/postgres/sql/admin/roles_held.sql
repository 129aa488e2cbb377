-- roles_held: what each of these roles has been granted in the schema, one row per privilege. Reads only the catalogue.
with held (grantee, may) as (
    select a.grantee, format('%%s on the schema', lower(a.privilege_type))
    from pg_namespace as n cross join aclexplode(n.nspacl) as a where n.nspname = %(schema)s
    union all
    select a.grantee, format('%%s on %%s', lower(a.privilege_type), c.relname)
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace cross join aclexplode(c.relacl) as a
    where n.nspname = %(schema)s
    union all
    select a.grantee, format('%%s (%%s) on %%s', lower(a.privilege_type), t.attname, c.relname)
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace join pg_attribute as t on t.attrelid = c.oid
    cross join aclexplode(t.attacl) as a where n.nspname = %(schema)s
    union all
    select a.grantee, format('execute %%s', p.proname)
    from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace cross join aclexplode(p.proacl) as a
    where n.nspname = %(schema)s
)
select r.rolname, array(select held.may from held where held.grantee = r.oid order by held.may)
from pg_roles as r where r.rolname = any (%(roles)s::text[])
