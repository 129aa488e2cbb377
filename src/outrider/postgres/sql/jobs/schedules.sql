-- schedules: the database's time, and how far each schedule of this context has been fired, and whether it is paused; a row of nulls if none is registered.
select t.now, s.name, s.fired_at, s.updated_at, s.ahead, s.paused_at is not null
from (select clock_timestamp() as now) as t
left join /*schema*/schedule as s
    on s.name = any(%(names)s::text[]) and (s.context is null or s.context = %(context)s)
