-- publish_many: many events with one insert; their numbers are drawn in the order given. Locks nothing.
-- What events of the same kind have in common travels once: their arrays hold an id, a payload and a few columns more.
-- It notifies by itself, once per channel and event type, by the rule of notify, and sets the cause of all: see publish_one.
with kind as materialized (
    select k.*, set_config('outrider.notified', statement_timestamp()::text, true),
           case when %(caused_by)s::text is not null then set_config('outrider.cause', %(caused_by)s::text, true) end
    from unnest(
        %(event_type)b::text[], %(event_version)b::int[], %(source)b::text[], %(target)b::text[], %(content_class)b::text[],
        %(channel)b::text[], %(generation)b::bigint[], %(workspace_id)b::text[], %(aggregate_kind)b::text[],
        %(trace_context)b::text[])
        with ordinality as k (event_type, event_version, source, target, content_class, channel, generation, workspace_id,
                              aggregate_kind, trace_context, place)
),
made as (
    insert into /*schema*/outbox (
        id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
        aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context)
    select e.id::uuid, k.event_type, k.event_version, coalesce(e.occurred_at::timestamptz, clock_timestamp()), k.source, k.target,
           k.content_class, k.channel, k.generation, k.workspace_id, k.aggregate_kind, e.aggregate_id, e.entity_version,
           e.payload::jsonb, e.idempotency_key, k.trace_context::jsonb
    from unnest(
        %(id)b::text[], %(kind)b::int[], %(payload)b::text[], %(aggregate_id)b::text[], %(entity_version)b::bigint[],
        %(occurred_at)b::text[], %(idempotency_key)b::text[])
        with ordinality as e (id, kind, payload, aggregate_id, entity_version, occurred_at, idempotency_key, place)
    join kind as k on k.place = e.kind
    order by e.place
    returning seq, (extract(epoch from occurred_at) * 1000000)::bigint as microseconds
)
select array_agg(made.seq order by made.seq), array_agg(made.microseconds order by made.seq), (
    select count(pg_notify(n.channel, n.event_type))
           + count(case when n.channel like 'outbox\_gen\_%%\_%%' then pg_notify('outbox_classes', n.event_type) end)
    from (select distinct k.channel, k.event_type from kind as k) as n
    where %(notify)s::boolean and current_setting('outrider.notify', true) is distinct from 'off'
      and pg_notification_queue_usage() < 0.9),
    case when %(caused_by)s::text is not null and count(*) > 0 then set_config('outrider.cause', '', true) end
from made
