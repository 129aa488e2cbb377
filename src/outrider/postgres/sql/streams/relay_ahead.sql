-- relay_ahead: see streams/functions/relay_ahead.sql.
select strangers, stranger from /*schema*/relay_ahead(%(subscription)s::text, %(events)s::uuid[])
