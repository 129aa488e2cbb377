-- narrow: a subscription no longer wants these event types. See admin/functions/narrow.sql.
select /*schema*/narrow(%(name)s::text, %(types)s::text[], %(force)s::bool, %(by)s::text, %(reason)s::text)
