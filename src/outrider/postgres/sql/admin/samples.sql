-- samples: those of the last hour, the oldest first. At most 60.
select s.taken_at, s.seq, s.waiting, s.owed, s.dead, s.handled, s.failed
from /*schema*/sample as s
where s.taken_at between clock_timestamp() - interval '1 hour' and clock_timestamp()
order by s.taken_at
