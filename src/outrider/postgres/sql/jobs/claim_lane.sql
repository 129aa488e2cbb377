-- claim_lane: more of the same lane. See jobs/functions/claim_lane.sql.
select * from /*schema*/claim_lane(
    %(worker)s::uuid, %(subscription)s::text, %(generation)s::bigint, %(queue)s::text, %(priority)s::int,
    %(since)s::timestamptz, %(limit)s::int)
