-- publish_one: one event, on the caller's connection and in the caller's transaction. Locks nothing.
-- It notifies by itself, which costs less than the trigger; outrider.notified tells the trigger so (notify_inserted). The rule is
-- that of the function notify, which a schema that waits for its migration does not have: publishers work on it.
with made as (
    insert into /*schema*/outbox (
        id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
        aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context)
    values (
        %(id)s::text::uuid, %(event_type)s, %(event_version)s,
        coalesce(%(occurred_at)s::text::timestamptz, clock_timestamp()), %(source)s,
        %(target)s, %(content_class)s, %(channel)s, %(generation)s, %(workspace_id)s, %(aggregate_kind)s,
        %(aggregate_id)s, %(entity_version)s, %(payload)s::text::jsonb, %(idempotency_key)s,
        %(trace_context)s::text::jsonb)
    returning seq, (extract(epoch from occurred_at) * 1000000)::bigint as microseconds,
              set_config('outrider.notified', statement_timestamp()::text, true)
)
select made.seq, made.microseconds,
       case when %(notify)s::boolean and current_setting('outrider.notify', true) is distinct from 'off'
                 and pg_notification_queue_usage() < 0.9
            then pg_notify(%(channel)s, %(event_type)s) end
from made
