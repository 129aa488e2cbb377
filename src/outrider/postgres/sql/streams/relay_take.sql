-- relay_take: one round trip for the next batch of a relay. See streams/functions/relay_take.sql.
select * from /*schema*/relay_take(%(subscription)s::text, %(limit)s::int, %(scan)s::int, %(knows)s::text[])
