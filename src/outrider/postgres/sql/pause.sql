-- pause: nobody takes from a subscription. See functions/pause.sql.
select /*schema*/pause(%(name)s::text, %(by)s::text, %(reason)s::text)
