-- rewind_schedule: let a schedule that was fired up to a time in the future, because the clock was set back, continue from now.
-- The time that was fired last is kept in `ahead`, and not fired again. Returns no row if another worker has advanced it or holds it.
-- Locks:  its row, without waiting.
with held as materialized (
    select s.name from /*schema*/schedule as s
    where s.name = %(name)s and s.fired_at = %(seen)s and s.fired_at > clock_timestamp() + %(ahead)s::interval
    for no key update skip locked
)
update /*schema*/schedule as s set fired_at = clock_timestamp(), ahead = s.fired_at
from held where s.name = held.name
returning s.name
