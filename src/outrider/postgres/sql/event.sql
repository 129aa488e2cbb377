-- event: one event of the log by its id, with its payload for the eye, and its withdrawal. By the index on id; an envelope
-- that was published twice gives two rows.
select o.seq, o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.channel,
       o.generation, o.workspace_id, o.aggregate_kind, o.aggregate_id, o.entity_version, o.payload::text,
       coalesce(o.idempotency_key, o.id::text), o.trace_context::text, o.origin,
       jsonb_pretty(o.payload), octet_length(o.payload::text), clock_timestamp(),
       w.withdrawn_at, w.withdrawn_by, w.reason, o.erased_at
from /*schema*/outbox as o left join /*schema*/withdrawal as w on w.seq = o.seq
where o.id = %(event_id)s
order by o.seq
