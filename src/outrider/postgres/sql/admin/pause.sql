-- pause: nobody takes from a subscription. See admin/functions/pause.sql.
select /*schema*/pause(%(name)s::text, %(by)s::text, %(reason)s::text)
