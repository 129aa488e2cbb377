-- cron: whether the server has pg_cron, as rollup_preflight says it, and how many rollups are ticked by it and by workers. What
-- the role may not read of the settings is taken to be well.
select case
           when exists (select from pg_extension where extname = 'pg_cron') then 'INSTALLED'
           when not exists (select from pg_available_extensions where name = 'pg_cron') then 'NOT_AVAILABLE'
           when (select s.setting !~ '\mpg_cron\M' from pg_settings as s where s.name = 'shared_preload_libraries')
               then 'NEEDS_PRELOAD'
           else 'AVAILABLE' end as state,
       count(*) filter (where r.scheduler = 'cron') as by_cron, count(*) filter (where r.scheduler <> 'cron') as by_workers
from /*schema*/rollup as r where r.uninstalled_at is null
