-- enqueue_jobs: jobs without unique keys, in one statement of the caller's transaction. Locks nothing, and reads nothing: it
-- needs the right to insert, and no other. What jobs of the same kind have in common travels once, as in publish_many.
with kind as materialized (
    select k.*
    from unnest(
        %(job_type)b::text[], %(version)b::int[], %(run_at)b::text[], %(delay)b::double precision[], %(priority)b::int[],
        %(queue)b::text[], %(source)b::text[], %(workspace_id)b::text[], %(trace_context)b::text[], %(generation)b::bigint[],
        %(caused_by)b::text[])
        with ordinality as k (job_type, version, run_at, delay, priority, queue, source, workspace_id, trace_context,
                              generation, caused_by, place)
),
made as (
    insert into /*schema*/job (
        subscription, generation, event_id, event_version, source, workspace_id, trace_context, run_at, queue, priority,
        job_key, payload, caused_by)
    select k.job_type, k.generation, j.id::uuid, k.version, k.source, k.workspace_id, k.trace_context::jsonb,
           coalesce(k.run_at::timestamptz, clock_timestamp() + coalesce(k.delay, 0) * interval '1 second'), k.queue,
           k.priority, j.key, j.payload::jsonb, k.caused_by::uuid
    from unnest(%(id)b::text[], %(kind)b::int[], %(payload)b::text[], %(key)b::text[])
         with ordinality as j (id, kind, payload, key, place)
    join kind as k on k.place = j.kind
    order by j.place
)
select count(/*schema*/notify(n.channel, n.job_type))
from (select distinct k.job_type, case k.generation when 0 then 'outbox_default'
                                                    else 'outbox_gen_' || k.generation end as channel
      from kind as k where %(notify)s::boolean) as n
