-- publish one event: one insert on the caller's connection, in the caller's transaction. Locks nothing.
insert into /*schema*/outbox (
    id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
    aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context)
values (
    %(id)s::text::uuid, %(event_type)s, %(event_version)s,
    coalesce(%(occurred_at)s::text::timestamptz, clock_timestamp()), %(source)s,
    %(target)s, %(content_class)s, %(channel)s, %(generation)s, %(workspace_id)s, %(aggregate_kind)s,
    %(aggregate_id)s, %(entity_version)s, %(payload)s::text::jsonb, %(idempotency_key)s,
    %(trace_context)s::text::jsonb)
returning id::text, seq, (extract(epoch from occurred_at) * 1000000)::bigint
