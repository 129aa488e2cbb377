-- publish many events: still one insert; the numbers are drawn in the order given. Locks nothing.
insert into /*schema*/outbox (
    id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
    aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context)
select e.id::uuid, e.event_type, e.event_version, coalesce(e.occurred_at::timestamptz, clock_timestamp()), e.source, e.target,
       e.content_class, e.channel, e.generation, e.workspace_id, e.aggregate_kind, e.aggregate_id, e.entity_version,
       e.payload::jsonb, e.idempotency_key, e.trace_context::jsonb
from unnest(
    %(id)b::text[], %(event_type)b::text[], %(event_version)b::int[], %(occurred_at)b::text[],
    %(source)b::text[], %(target)b::text[], %(content_class)b::text[], %(channel)b::text[], %(generation)b::bigint[],
    %(workspace_id)b::text[], %(aggregate_kind)b::text[], %(aggregate_id)b::text[], %(entity_version)b::bigint[],
    %(payload)b::text[], %(idempotency_key)b::text[], %(trace_context)b::text[]
) with ordinality as e (
    id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
    aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context, place)
order by e.place
returning id::text, seq, (extract(epoch from occurred_at) * 1000000)::bigint
