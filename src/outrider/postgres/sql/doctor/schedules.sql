-- schedules: how many there are, and those that were fired up to a time still to come, the furthest first. Reads a small table.
select (select count(*) from /*schema*/schedule) as schedules, s.name, s.fired_at, s.fired_at - clock_timestamp() as ahead
from (values (0)) as one (row)
left join /*schema*/schedule as s on s.fired_at > clock_timestamp() + %(ahead)s::interval
order by s.fired_at desc
