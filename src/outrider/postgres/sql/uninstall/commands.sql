-- commands: the commands that lock our tables (hold) and that drop all our objects (drop). Reads only the catalogue.
-- The log is locked last, so that publishers wait as briefly as possible. The order of drops works with RESTRICT, and nothing
-- cascades: functions that only functions use (some take or return a row of a table or view), then views and tables, then the
-- functions that these used.
with recursive place as (
    select n.oid from pg_namespace as n where n.nspname = %(schema)s
),
relation as (
    select c.relkind, c.relname as name, quote_ident(%(schema)s) || '.' || quote_ident(c.relname) as identity
    from pg_class as c, place
    where c.relnamespace = place.oid and not c.relispartition
      and (c.relkind <> 'S' and c.relname = any (%(tables)s)
           or c.relkind = 'r' and c.relname ~ '^outbox_' and obj_description(c.oid, 'pg_class') = 'a detached segment of the log'
           or c.relkind = 'S' and c.relname ~ %(sequences)s)
),
needed as (
    select d.refobjid as oid from pg_depend as d
    where d.refclassid = 'pg_proc'::regclass and d.classid <> 'pg_proc'::regclass
    union
    select d.refobjid from needed join pg_depend as d on d.classid = 'pg_proc'::regclass and d.objid = needed.oid
    where d.refclassid = 'pg_proc'::regclass
),
routine as (
    select (pg_identify_object('pg_proc'::regclass, p.oid, 0)).identity, p.oid in (select needed.oid from needed) as needed
    from pg_proc as p, place where p.pronamespace = place.oid and p.proname = any (%(functions)s)
),
command (step, place, text) as (
    select 'hold', 1, 'lock table ' || string_agg(r.identity, ', ' order by r.name = 'outbox', r.name <> 'cursor', r.name)
                      || ' in access exclusive mode'
    from relation as r where r.relkind in ('r', 'p')
    union all
    select 'drop', 1, 'drop function ' || string_agg(f.identity, ', ') from routine as f where not f.needed
    union all
    select 'drop', 2, 'drop view ' || string_agg(r.identity, ', ') from relation as r where r.relkind = 'v'
    union all
    select 'drop', 3, 'drop table ' || string_agg(r.identity, ', ') from relation as r where r.relkind in ('r', 'p')
    union all
    select 'drop', 4, 'drop sequence ' || string_agg(r.identity, ', ') from relation as r where r.relkind = 'S'
    union all
    select 'drop', 5, 'drop function ' || string_agg(f.identity, ', ') from routine as f where f.needed
    union all
    select 'drop', 6, 'drop type ' || string_agg(quote_ident(%(schema)s) || '.' || quote_ident(t.typname), ', ')
    from pg_type as t, place where t.typnamespace = place.oid and t.typname = any (%(types)s)
    union all
    select 'drop', 7, 'drop schema ' || quote_ident(%(schema)s) where %(whole)s
)
select command.step, command.text || case command.step when 'drop' then ' restrict' else '' end as text
from command where command.text is not null
order by command.step desc, command.place
