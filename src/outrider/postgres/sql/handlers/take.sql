-- take: one round trip for the next batch of a cursor partition. See handlers/functions/take.sql.
select * from /*schema*/take(
    %(subscription)s::text, %(partition)s::int, %(limit)s::int, %(scan)s::int, %(generation)s::bigint,
    %(knows)s::text[], %(armed)s::bigint, %(excused)s::int, %(worker)s::text, %(careful)s::bool, %(alone)s::bool)
