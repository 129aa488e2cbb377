-- relay_open: see streams/functions/relay_open.sql.
select /*schema*/relay_open(%(subscription)s::text, %(streams)s::text[], %(positions)s::text[], %(adopt)s::bool)
