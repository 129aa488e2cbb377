-- publish_many: many events with one insert; their numbers are drawn in the order given, because the scan of a function keeps its
-- order. Locks nothing. Columns in which the events differ travel as arrays; what all have in common travels once, as in publish_one.
-- It notifies by itself, once per channel and event type.
with made as (
    insert into /*schema*/outbox (/*columns*/)
    select /*values*/
    from unnest(/*arrays*/) as e (/*names*/)
    /*quietly*/
    returning seq, (extract(epoch from occurred_at) * 1000000)::bigint as microseconds
)
select array_agg(made.seq), array_agg(made.microseconds), (
    select count(/*schema*/notify(w.channel, w.event_type) is null)
    from unnest(%(wake_channel)b::text[], %(wake_type)b::text[]) as w (channel, event_type) where %(notify)s::boolean)
from made
