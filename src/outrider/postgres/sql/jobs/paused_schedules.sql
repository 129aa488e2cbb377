-- paused_schedules: the schedules that are paused, and since when. Reads a small table.
select s.name, s.paused_at from /*schema*/schedule as s where s.paused_at is not null order by s.name
