-- hold: nobody registers, renames or retires a subscription until the transaction ends. Locks its row, so weakly that a
-- take may still refer to it: one that parks events does, under the lock of its cursor, for which we wait next.
select s.name from /*schema*/subscription as s where s.name = %(name)s for no key update
