-- others_own: our objects that belong to a role whose privileges the current user lacks; also the schema, if it is to be dropped.
-- Reads only the catalogue.
with place as (
    select n.oid, n.nspowner from pg_namespace as n where n.nspname = %(schema)s
),
owned as (
    select 'schema' as kind, %(schema)s as name, place.nspowner as owner from place where %(whole)s
    union all
    select 'table', c.relname, c.relowner from pg_class as c, place
    where c.relnamespace = place.oid 
      and (c.relname = any (%(tables)s)
           or c.relkind = 'r' and c.relname ~ '^outbox_' and obj_description(c.oid, 'pg_class') = 'a detached segment of the log')
    union all
    select 'function', p.proname, p.proowner from pg_proc as p, place
    where p.pronamespace = place.oid and p.proname = any (%(functions)s)
)
select owned.kind, owned.name, pg_get_userbyid(owned.owner), current_user
from owned where not pg_has_role(current_user, owned.owner, 'usage')
order by owned.kind = 'function', owned.kind, owned.name limit 1
