-- rewind_schedule: let a schedule that was fired up to a time in the future, because the clock was set back, continue from now.
-- The time that was fired last is kept in `ahead`, and not fired again. Returns no row if another worker has advanced it.
-- Locks:  its row.
update /*schema*/schedule as s set fired_at = clock_timestamp(), ahead = s.fired_at
where s.name = %(name)s and s.fired_at = %(seen)s and s.fired_at > clock_timestamp() + %(ahead)s::interval
returning s.name
