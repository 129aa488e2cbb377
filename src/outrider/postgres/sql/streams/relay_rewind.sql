-- relay_rewind: see streams/functions/relay_rewind.sql.
select /*schema*/relay_rewind(%(subscription)s::text, %(at)s::timestamptz)
