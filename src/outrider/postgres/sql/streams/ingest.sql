-- ingest: one round trip for a batch of an inbox. See streams/functions/ingest.sql.
select outcome, events, stands from /*schema*/ingest(
    %(subscription)s::text, %(stream)s::text, %(after)s::text, %(position)s::text, %(channel)s::text, %(generation)s::bigint,
    %(id)s::text[], %(event_type)s::text[], %(event_version)s::int[], %(occurred_at)s::text[], %(source)s::text[],
    %(target)s::text[], %(content_class)s::text[], %(workspace_id)s::text[], %(aggregate_kind)s::text[],
    %(aggregate_id)s::text[], %(entity_version)s::bigint[], %(payload)s::text[], %(idempotency_key)s::text[],
    %(trace_context)s::text[])
