-- relay_settle: see streams/functions/relay_settle.sql.
select /*schema*/relay_settle(
    %(subscription)s::text, %(streams)s::text[], %(positions)s::text[], %(events)s::bigint[], %(sent)s::bigint[],
    %(passed)s::bigint[], %(found)s::uuid[], %(done)s::bool, %(mark)s::bool)
