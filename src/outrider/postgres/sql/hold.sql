-- hold: nobody registers, renames or retires a subscription until the transaction ends. Locks its row, so weakly that a
-- take may still refer to it: one that parks events does, under the lock of its cursor, for which we wait next.
-- Whoever does not see every tenant is refused: it would leave behind what it does not see.
select s.name from /*schema*/subscription as s cross join /*schema*/sees_all() where s.name = %(name)s for no key update of s
