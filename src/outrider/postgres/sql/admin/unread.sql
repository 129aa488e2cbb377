-- unread: how many events a subscription still has to read. See admin/functions/unread.sql.
select events, more from /*schema*/unread(%(name)s::text, %(scan)s::int)
