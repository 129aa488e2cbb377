-- rollup_standings: every rollup: how many rows wait, up to `most`, its settings, and the newest of its last thousand runs that found
-- something to do.
select r.name, r.context, coalesce(r.spec ->> 'table', array_to_string(array(
           select jsonb_array_elements_text(r.spec -> 'events')), ', ')) as source,
       case when exists (select from pg_extension where extname = 'pg_cron') then r.scheduler else 'worker' end as scheduler,
       r.every, r.installed_at, r.uninstalled_at, r.ticked_at, waiting.pending, waiting.oldest_at, aside.rows,
       settings.debounce, settings.threshold, settings.max_wait, settings.complaints, to_jsonb(run) - 'id' as last_run,
       array_remove(array[r.spec ->> 'single', r.spec ->> 'rollup'], null) as emits
from /*schema*/rollup as r
cross join lateral (
    select count(*) as pending, min(p.staged_at) as oldest_at from (
        select p.staged_at from /*schema*/rollup_pending as p
        where p.rollup = r.name and p.processed_at is null and p.set_aside_at is null
        order by p.id limit %(most)s) as p) as waiting
cross join lateral (
    select count(*) as rows from (
        select from /*schema*/rollup_pending as p
        where p.rollup = r.name and p.processed_at is null and p.set_aside_at is not null limit %(most)s) as p) as aside
cross join lateral /*schema*/rollup_settings(r.name) as settings
left join lateral (
    select l.* from (
        select l.* from /*schema*/rollup_log as l where l.rollup = r.name order by l.run_at desc limit 1000) as l
    where l.result <> 'idle' order by l.run_at desc limit 1) as run on true
order by r.name
