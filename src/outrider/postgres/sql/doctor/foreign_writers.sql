-- foreign_writers: the roles outside of a context that can write in a schema that the context owns; superusers aside.
-- `owns`: the schemas. `roles`: the context's roles, beside those named after it; `contexts`: other contexts, whose roles may begin
-- with the same word. Rights count however they were got: to the role or to PUBLIC, on a table or a column, by default
-- privileges, by ownership, and through every role that it inherits or may become.
with owned as (
    select n.oid, n.nspname, n.nspowner, n.nspacl from pg_namespace as n where n.nspname = any (%(owns)s::text[])
),
writes (privilege) as (values ('INSERT'), ('UPDATE'), ('DELETE'), ('TRUNCATE'), ('TRIGGER')),
part as (
    select c.oid, c.relowner, c.relacl, owned.nspname, c.relname::text as name
    from owned join pg_class as c on c.relnamespace = owned.oid and c.relkind in ('r', 'p', 'f', 'v')
),
-- What a role, or PUBLIC (0), holds itself.
held (holder, nspname, thing, may, how) as (
    select a.grantee, part.nspname, part.name, lower(a.privilege_type), 'granted'
    from part, lateral aclexplode(part.relacl) as a join writes on writes.privilege = a.privilege_type
    where a.grantee <> part.relowner
    union all
    select a.grantee, part.nspname, format('%%s (%%s)', part.name, t.attname), lower(a.privilege_type), 'granted'
    from part join pg_attribute as t on t.attrelid = part.oid, lateral aclexplode(t.attacl) as a
    join writes on writes.privilege = a.privilege_type
    union all
    select part.relowner, part.nspname, part.name, 'do everything', 'owned' from part
    union all
    select owned.nspowner, owned.nspname, null, privilege, 'the schema is owned' from owned, unnest('{create,drop}'::text[]) as privilege
    union all
    select a.grantee, owned.nspname, null, 'create', 'granted'
    from owned, lateral aclexplode(owned.nspacl) as a where a.privilege_type = 'CREATE' and a.grantee <> owned.nspowner
    union all
    select a.grantee, owned.nspname, null, lower(a.privilege_type), 'default privileges of ' || d.defaclrole::regrole
    from owned, pg_default_acl as d, lateral aclexplode(d.defaclacl) as a join writes on writes.privilege = a.privilege_type
    where d.defaclobjtype = 'r' and a.grantee <> d.defaclrole
      and (d.defaclnamespace = owned.oid
           or d.defaclnamespace = 0 and has_schema_privilege(d.defaclrole, owned.oid, 'create'))
    union all
    select r.oid, owned.nspname, null, privilege, 'pg_write_all_data'
    from owned, pg_roles as r, unnest('{insert,update,delete}'::text[]) as privilege where r.rolname = 'pg_write_all_data'
    union all
    select r.oid, owned.nspname, null, 'do everything', 'a superuser' from owned, pg_roles as r where r.rolsuper
),
stranger as (
    select r.oid, quote_ident(r.rolname) as name
    from pg_roles as r
    where not r.rolsuper and r.rolname !~ '^pg_' and r.rolname <> all (%(roles)s::text[])
      and not (r.rolname = %(context)s::text or starts_with(r.rolname, %(context)s::text || '_')
               and not exists (select from unnest(%(contexts)s::text[]) as c (other)
                               where starts_with(other, %(context)s::text || '_')
                                 and (r.rolname = other or starts_with(r.rolname, other || '_'))))
),
-- From Postgres 16 on, a membership may allow neither to inherit nor to become the role.
acts (oid, name, holder) as (
    select stranger.oid, stranger.name, holder.oid
    from stranger, (select distinct held.holder as oid from held where held.holder <> 0) as holder
    where stranger.oid = holder.oid
       or pg_has_role(stranger.oid, holder.oid, case when current_setting('server_version_num')::integer < 160000 then 'member'
                                                     else 'usage, set, member with admin option' end)
),
found (who, through, nspname, thing, may, how) as (
    select 'PUBLIC', null, held.nspname, held.thing, held.may, held.how from held where held.holder = 0
    union all
    select acts.name, case when acts.oid <> acts.holder then acts.holder::regrole::text end,
           held.nspname, held.thing, held.may, held.how
    from acts join held on held.holder = acts.holder
),
told as (
    select found.who, found.nspname, string_agg(distinct found.may, ', ' order by found.may) as may,
           case when count(found.thing) = 0 then
                    case when found.how like 'default%%' then 'tables that will come in ' || quote_ident(found.nspname)
                         when found.how in ('the schema is owned', 'granted') then 'the schema ' || quote_ident(found.nspname)
                         else 'every table of ' || quote_ident(found.nspname) end
                when count(distinct found.thing) = (select count(*) from part where part.nspname = found.nspname)
                     and count(distinct found.thing) > 4 then 'every table of ' || quote_ident(found.nspname)
                else quote_ident(found.nspname) || ': '
                     || array_to_string((array_agg(distinct found.thing order by found.thing))[:4], ', ')
                     || case when count(distinct found.thing) > 4
                             then format(' and %%s more', count(distinct found.thing) - 4) else '' end
           end as things,
           case found.how
               when 'granted' then 'granted to ' || coalesce(found.through, 'it')
               when 'owned' then coalesce(found.through, 'it') || ' owns it'
               when 'the schema is owned' then coalesce(found.through, 'it') || ' owns the schema'
               when 'pg_write_all_data' then 'granted to pg_write_all_data'
               when 'a superuser' then found.through || ' is a superuser'
               else found.how || ', granted to ' || coalesce(found.through, 'it')
           end || case when found.through is null then '' else ', and it is a member of ' || found.through end as why
    from found group by found.who, found.through, found.nspname, found.how, found.thing is null
)
select told.who, format('%%s on %%s', told.may, told.things), told.why, true as grave from told
union all
select owns.name, 'be created', 'there is no such schema', false
from unnest(%(owns)s::text[]) as owns (name) where owns.name not in (select owned.nspname from owned)
order by 1, 2, 3
