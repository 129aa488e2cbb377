-- schedules: the database's time, and of each schedule its job, how far it has been fired and whether it is paused, the furthest first.
-- A row of nulls if there is none. Reads a small table.
select t.now, s.name, s.context, s.job_type, s.cron, s.time_zone, s.fired_at, s.missed, s.enqueued_at, s.paused_at
from (select clock_timestamp() as now) as t left join /*schema*/schedule as s on true
order by s.fired_at desc
