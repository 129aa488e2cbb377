-- cron: whether the server has pg_cron, by the rule of rollup_preflight, and how many rollups pg_cron and workers tick.
-- Settings that the role may not read are assumed to be right.
select case
           when exists (select from pg_extension where extname = 'pg_cron') then 'INSTALLED'
           when not exists (select from pg_available_extensions where name = 'pg_cron') then 'NOT_AVAILABLE'
           when (select s.setting !~ '\mpg_cron\M' from pg_settings as s where s.name = 'shared_preload_libraries')
               then 'NEEDS_PRELOAD'
           else 'AVAILABLE' end as state,
       count(*) filter (where r.scheduler = 'cron') as by_cron, count(*) filter (where r.scheduler <> 'cron') as by_workers
from /*schema*/rollup as r where r.uninstalled_at is null
