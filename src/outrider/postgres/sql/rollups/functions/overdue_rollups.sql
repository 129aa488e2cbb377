-- overdue_rollups: rollups that workers should tick and that nobody has ticked for twice their interval, because the running workers
-- do not know them. Reads only the table of rollups.
create or replace function /*schema*/overdue_rollups() returns setof text
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select r.name from /*schema*/rollup as r
    where r.uninstalled_at is null
      and (r.scheduler = 'worker' or not exists (select from pg_extension where extname = 'pg_cron'))
      and coalesce(r.ticked_at, r.installed_at) not between clock_timestamp() - 2 * r.every and clock_timestamp()
    order by r.name
$$;
