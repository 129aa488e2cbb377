-- rollup_state: who ticks these rollups, whether each is installed as declared, and in how many seconds it is due. Rollups that are
-- not installed are missing. Without pg_cron only a worker can tick.
select r.name, case when exists (select from pg_extension where extname = 'pg_cron') then r.scheduler else 'worker' end,
       r.uninstalled_at is null, r.spec <> declared.spec::jsonb,
       extract(epoch from case when r.ticked_at <= clock_timestamp() then r.ticked_at + r.every - clock_timestamp()
                               else interval '0' end)::double precision  -- never ticked, or the clock was set back
from unnest(%(names)s::text[], %(specs)s::text[]) as declared (name, spec)
join /*schema*/rollup as r on r.name = declared.name
