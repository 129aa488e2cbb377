-- relay_rewind: see functions/relay_rewind.sql.
select /*schema*/relay_rewind(%(subscription)s::text, %(at)s::timestamptz)
