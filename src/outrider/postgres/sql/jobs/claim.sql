-- claim: one round trip for the next jobs of a worker. See jobs/functions/claim.sql.
select * from /*schema*/claim(
    %(worker)s::uuid, %(names)s::text[], %(limit)s::int, %(generation)s::bigint, %(queues)s::text[], %(suspect)s::boolean)
