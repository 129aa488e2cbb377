-- publish many events: still one insert; the numbers are drawn in the order given. Locks nothing.
insert into /*schema*/outbox (
    id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
    aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context)
select e.id, e.event_type, e.event_version, coalesce(e.occurred_at, clock_timestamp()), e.source, e.target,
       e.content_class, e.channel, e.generation, e.workspace_id, e.aggregate_kind, e.aggregate_id, e.entity_version,
       e.payload::jsonb, e.idempotency_key, e.trace_context::jsonb
from unnest(
    %(id)s::uuid[], %(event_type)s::text[], %(event_version)s::int[], %(occurred_at)s::timestamptz[],
    %(source)s::text[], %(target)s::text[], %(content_class)s::text[], %(channel)s::text[], %(generation)s::bigint[],
    %(workspace_id)s::text[], %(aggregate_kind)s::text[], %(aggregate_id)s::text[], %(entity_version)s::bigint[],
    %(payload)s::text[], %(idempotency_key)s::text[], %(trace_context)s::text[]
) with ordinality as e (
    id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
    aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context, place)
order by e.place
returning id, seq, occurred_at
