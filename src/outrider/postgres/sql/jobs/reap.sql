-- reap: all that a worker held, because it has ended; `begun`: what it was at. See jobs/functions/reap.sql.
select /*schema*/reap(%(names)s::text[], %(worker)s::uuid, 1000000, %(begun)s::bigint[])
