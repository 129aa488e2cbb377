-- retire a subscription; what was lost with it. See admin/functions/retire.sql.
select unread, more, parked, dead from /*schema*/retire(%(name)s::text, %(force)s::bool, %(by)s::text, %(reason)s::text)
