-- enqueue_unique: jobs with unique keys. See jobs/functions/enqueue_one.sql.
select made.job_id::text, made.outcome
from unnest(
    %(id)b::text[], %(job_type)b::text[], %(version)b::int[], %(payload)b::text[], %(run_at)b::text[],
    %(delay)b::double precision[], %(priority)b::int[], %(queue)b::text[], %(key)b::text[], %(source)b::text[],
    %(workspace_id)b::text[], %(trace_context)b::text[], %(generation)b::bigint[], %(unique_key)b::text[],
    %(on_conflict)b::text[], %(caused_by)b::text[])
    with ordinality as a (id, job_type, version, payload, run_at, delay, priority, queue, key, source, workspace_id,
                          trace_context, generation, unique_key, on_conflict, caused_by, place)
cross join lateral /*schema*/enqueue_one(
    a.job_type, a.payload::jsonb, a.id::uuid,
    coalesce(a.run_at::timestamptz, clock_timestamp() + coalesce(a.delay, 0) * interval '1 second'), a.priority, a.unique_key,
    a.on_conflict, a.queue, a.key, a.version, a.source, a.workspace_id, a.trace_context::jsonb, a.generation,
    %(poke)s::boolean, a.caused_by::uuid) as made
order by a.place
