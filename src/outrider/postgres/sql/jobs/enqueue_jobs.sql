-- enqueue_jobs: jobs without unique keys, in one statement of the caller's transaction. Locks nothing, and reads nothing: it
-- needs the right to insert, and no other.
with asked as materialized (
    select a.* from unnest(
        %(id)b::text[], %(job_type)b::text[], %(version)b::int[], %(payload)b::text[], %(run_at)b::text[],
        %(delay)b::double precision[], %(priority)b::int[], %(queue)b::text[], %(key)b::text[], %(source)b::text[],
        %(workspace_id)b::text[], %(trace_context)b::text[], %(generation)b::bigint[], %(caused_by)b::text[])
        with ordinality as a (id, job_type, version, payload, run_at, delay, priority, queue, key, source, workspace_id,
                              trace_context, generation, caused_by, place)
),
made as (
    insert into /*schema*/delivery (
        subscription, generation, partition, event_id, event_type, event_version, source, workspace_id, trace_context,
        status, head, reached, run_at, queue, priority, job_key, payload, caused_by)
    select a.job_type, a.generation, 0, a.id::uuid, a.job_type, a.version, a.source, a.workspace_id, a.trace_context::jsonb,
           'pending', false, false,
           coalesce(a.run_at::timestamptz, clock_timestamp() + coalesce(a.delay, 0) * interval '1 second'), a.queue, a.priority, a.key,
           a.payload::jsonb, a.caused_by::uuid
    from asked as a order by a.place
)
select a.id, 'created', (
    select count(/*schema*/notify(poke.channel, poke.job_type))
    from (select distinct a.job_type, case a.generation when 0 then 'outbox_default'
                                                        else 'outbox_gen_' || a.generation end as channel
          from asked as a
          where %(poke)s::boolean
            and current_setting('outrider.notify', true) is distinct from 'after_commit') as poke)
from asked as a order by a.place
