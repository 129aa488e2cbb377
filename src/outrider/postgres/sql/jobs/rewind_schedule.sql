-- rewind_schedule: a schedule that was fired up to a time still to come, because the clock has gone back since, goes on from
-- now; the time that was fired last is remembered, and not fired again. Nothing, if somebody else has moved it.
-- Locks:  its row.
update /*schema*/schedule as s set fired_at = clock_timestamp(), ahead = s.fired_at
where s.name = %(name)s and s.fired_at = %(seen)s and s.fired_at > clock_timestamp() + %(ahead)s::interval
returning s.name
