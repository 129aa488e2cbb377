-- schedules: what time it is, and how far each schedule has come; a row of nulls if none of them is registered.
select t.now, s.name, s.fired_at
from (select clock_timestamp() as now) as t
left join /*schema*/schedule as s on s.name = any(%(names)s::text[])
