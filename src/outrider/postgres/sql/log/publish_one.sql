-- publish_one: one event, on the caller's connection and in the caller's transaction. Locks nothing.
-- The trigger accept_event notifies, unless outrider.notified tells it not to. The default of caused_by reads outrider.cause, which is
-- set for this statement alone: what the handler publishes otherwise, or for another event, must not find it.
insert into /*schema*/outbox (
    id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
    aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context)
select
    %(id)s::text::uuid, %(event_type)s, %(event_version)s,
    coalesce(%(occurred_at)s::text::timestamptz, clock_timestamp()), %(source)s, %(target)s, %(content_class)s, %(channel)s,
    %(generation)s, %(workspace_id)s, %(aggregate_kind)s, %(aggregate_id)s, %(entity_version)s,
    %(payload)s::text::jsonb, %(idempotency_key)s, %(trace_context)s::text::jsonb
where (%(notify)s::boolean or set_config('outrider.notified', statement_timestamp()::text, true) is not null)
  and (%(caused_by)s::text is null or set_config('outrider.cause', %(caused_by)s::text, true) is not null)
returning seq, (extract(epoch from occurred_at) * 1000000)::bigint,
          case when %(caused_by)s::text is not null then set_config('outrider.cause', '', true) end
