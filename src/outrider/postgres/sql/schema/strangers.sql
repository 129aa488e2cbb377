-- strangers: objects in the schema that have one of our names and belong to a role that the current user has no reason to trust.
-- Such a function would run with the current user's privileges. Trusted are the user itself, roles that it is a member of, and
-- superusers. A superuser is a member of every role, so it trusts only superusers.
with me as (
    select oid, rolsuper from pg_roles where rolname = current_user
), owned as (
    select 'schema' as kind, nspname as name, nspowner as owner from pg_namespace where nspname = %(schema)s
    union all
    select 'table', relname, relowner from pg_class
    where relnamespace = to_regnamespace(quote_ident(%(schema)s)) and relname = 'migration'
    union all
    select 'function', proname, proowner from pg_proc
    where pronamespace = to_regnamespace(quote_ident(%(schema)s)) and proname = any (%(functions)s)
), really as (
    select owned.kind, owned.name,
           case when owned.owner = 'pg_database_owner'::regrole
                then (select datdba from pg_database where datname = current_database()) else owned.owner end as owner
    from owned
)
select really.kind, really.name, role.rolname
from me, really join pg_roles as role on role.oid = really.owner
where role.oid <> me.oid and not role.rolsuper and (me.rolsuper or not pg_has_role(me.oid, role.oid, 'member'))
limit 1
