-- foreign: objects that are not ours and that an uninstall would affect. Reads the catalogue and the names of the rollups, whose
-- functions are reported elsewhere.
-- dependent: needs something of ours (a view, a foreign key, a trigger, a default, a publication). stranger: is in our schema.
-- mention: a function whose text names our schema; Postgres does not track that, so it is reported but does not count.
-- Ours are the objects that the migrations name, detached segments, and their parts: partitions, indexes, constraints, defaults,
-- policies, statistics, row types, identity sequences.
with recursive place as (
    select n.oid from pg_namespace as n where n.nspname = %(schema)s
),
ours (classid, objid) as (
    select named.classid, named.objid from (
        select 'pg_class'::regclass::oid as classid, c.oid as objid from pg_class as c, place
        where c.relnamespace = place.oid
          and (c.relkind <> 'S' and c.relname = any (%(tables)s)
               or c.relkind = 'r' and c.relname ~ '^outbox_' and obj_description(c.oid, 'pg_class') = 'a detached segment of the log'
               or c.relkind = 'S' and c.relname ~ %(sequences)s)
        union all
        select 'pg_proc'::regclass, p.oid from pg_proc as p, place
        where p.pronamespace = place.oid and p.proname = any (%(functions)s)
        union all
        select 'pg_type'::regclass, t.oid from pg_type as t, place
        where t.typnamespace = place.oid and t.typname = any (%(types)s)) as named
    union
    select d.classid, d.objid
    from ours join pg_depend as d on d.refclassid = ours.classid and d.refobjid = ours.objid
    where d.deptype in ('i', 'P', 'S')
       or ours.classid = 'pg_class'::regclass and case d.classid
           when 'pg_class'::regclass then
               exists (select from pg_class as c where c.oid = d.objid and c.relispartition)
               or exists (select from pg_index as i where i.indexrelid = d.objid and i.indrelid = ours.objid)
           when 'pg_constraint'::regclass then
               exists (select from pg_constraint as c where c.oid = d.objid and c.conrelid = ours.objid)
           when 'pg_attrdef'::regclass then
               exists (select from pg_attrdef as a where a.oid = d.objid and a.adrelid = ours.objid)
           when 'pg_policy'::regclass then true
           when 'pg_statistic_ext'::regclass then true
           when 'pg_trigger'::regclass then
               exists (select from pg_trigger as t where t.oid = d.objid and t.tgname = any (%(triggers)s))
           else false
       end
),
rolled as (
    select p.oid from pg_proc as p, place
    where p.pronamespace = place.oid and p.proname in (
        select made.name || r.slug from /*schema*/rollup as r
        cross join (values ('rollup_stage_'), ('rollup_note_')) as made (name))
),
others as (
    select case d.refclassid when 'pg_namespace'::regclass then 'stranger' else 'dependent' end as kind,
           -- A view depends on a table through its rule.
           case when r.ev_class is null then d.classid else 'pg_class'::regclass end as classid,
           coalesce(r.ev_class, d.objid) as objid, case when r.ev_class is null then d.objsubid else 0 end as objsubid
    from pg_depend as d left join pg_rewrite as r
        on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid
           and exists (select from pg_class as c where c.oid = r.ev_class and c.relkind in ('v', 'm'))
    where ((d.refclassid, d.refobjid) in (select ours.classid, ours.objid from ours)
           or d.refclassid = 'pg_namespace'::regclass and d.refobjid = (select place.oid from place)
              and (d.deptype = 'n' or d.classid = 'pg_publication_namespace'::regclass))
      and (d.classid, d.objid) not in (select ours.classid, ours.objid from ours)
      and not (d.classid = 'pg_proc'::regclass and d.objid in (select rolled.oid from rolled))
)
select others.kind, pg_describe_object(others.classid, others.objid, others.objsubid) as what
from others
union
select 'mention', pg_describe_object('pg_proc'::regclass, p.oid, 0)
from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
where n.nspname not in ('pg_catalog', 'information_schema')
  and p.prosrc ~ ('(^|[^a-zA-Z0-9_$."])"?' || %(schema)s || '"?[.]')
  and ('pg_proc'::regclass, p.oid) not in (select ours.classid, ours.objid from ours)
  and p.oid not in (select rolled.oid from rolled)
order by 1, 2
