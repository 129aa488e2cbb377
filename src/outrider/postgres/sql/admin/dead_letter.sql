-- dead_letter: the deliveries and jobs of one event in full, with the event: dead letters, discarded ones, and those that wait.
-- handled_at: the idempotency key has a receipt, so a replay would be skipped. Locks nothing.
select d.event_id, d.subscription, d.status, o.seq, d.event_type,
       coalesce(o.event_version, d.event_version), coalesce(o.source, d.source), coalesce(o.aggregate_id, d.job_key),
       coalesce(o.workspace_id, d.workspace_id), coalesce(o.idempotency_key, d.event_id::text),
       coalesce(o.occurred_at, d.created_at), d.generation, d.attempts, d.cycle,
       d.last_error_code, d.last_error, d.fingerprint, d.first_failed_at, d.buried_at, h.handled_at,
       /*schema*/as_pretty_text(coalesce(o.payload, d.payload)),
       case when d.seq is not null then /*schema*/as_pretty_text(d.payload) end,
       d.failure_history, d.last_traceback
from /*schema*/owed as d
left join lateral (select o.* from /*schema*/outbox as o where o.seq = d.seq limit 1) as o on true
left join /*schema*/event_handled as h
    on h.handler_name = d.subscription
   and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
where d.id = any (/*schema*/owed_of(%(event_id)s::uuid)) and d.subscription = coalesce(%(subscription)s::text, d.subscription)
order by d.subscription, d.seq
