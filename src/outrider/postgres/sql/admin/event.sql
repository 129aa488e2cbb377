-- event: one event of the log by its id, with its payload on many lines, and its withdrawal. By the index on id.
-- Not ordered by seq: without sorts, the planner would read the whole log in that order.
-- An envelope that was published twice gives two rows. A payload that cannot be read is an empty text.
select o.seq, o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.channel,
       o.generation, o.workspace_id, o.aggregate_kind, o.aggregate_id, o.entity_version, said.payload,
       coalesce(o.idempotency_key, o.id::text), nullif(/*schema*/as_text(o.trace_context), ''), o.origin,
       case when said.payload = '' then '' else /*schema*/as_pretty_text(o.payload) end, octet_length(said.payload), clock_timestamp(),
       w.withdrawn_at, w.withdrawn_by, w.reason, o.erased_at, o.caused_by
from /*schema*/outbox as o left join /*schema*/withdrawal as w on w.seq = o.seq
cross join lateral (select /*schema*/as_text(o.payload) as payload offset 0) as said
where o.id = %(event_id)s
