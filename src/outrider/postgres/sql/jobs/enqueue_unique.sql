-- enqueue_unique: one job with a unique key. See functions/enqueue_one.sql.
select made.job_id::text, made.outcome
from /*schema*/enqueue_one(
    %(job_type)s::text, %(payload)s::text::jsonb, %(id)s::text::uuid,
    coalesce(%(run_at)s::text::timestamptz, clock_timestamp() + coalesce(%(delay)s::double precision, 0) * interval '1 second'),
    %(priority)s::int, %(unique_key)s::text, %(on_conflict)s::text, %(queue)s::text, %(key)s::text, %(version)s::int,
    %(source)s::text, %(workspace_id)s::text, %(trace_context)s::text::jsonb, %(generation)s::bigint, %(notify)s::boolean,
    %(caused_by)s::text::uuid) as made
