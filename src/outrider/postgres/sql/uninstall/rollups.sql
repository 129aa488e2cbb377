-- rollups: the rollups that prevent an uninstall, because they are on a table or on events or left functions there (held), and how
-- many rows of each wait, those that were set aside included. Rows of unknown rollups count too.
with named as (
    select r.name from /*schema*/rollup as r
    union
    select p.rollup from /*schema*/rollup_pending as p where p.processed_at is null
),
standing as (
    select named.name,
           r.name is not null and (r.uninstalled_at is null or exists (
               select from pg_proc as f join pg_namespace as n on n.oid = f.pronamespace
               where n.nspname = %(schema)s and f.proname in ('rollup_stage_' || r.slug, 'rollup_note_' || r.slug))) as held,
           (select count(*) from /*schema*/rollup_pending as p
            where p.rollup = named.name and p.processed_at is null) as waiting
    from named left join /*schema*/rollup as r on r.name = named.name
)
select standing.name, standing.held, standing.waiting from standing where standing.held or standing.waiting > 0
order by standing.name
