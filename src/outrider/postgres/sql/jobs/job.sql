-- job: one job in full, by its id: what is owed of it, or its receipt. Usually one row; an event may be several jobs.
-- By index. Locks nothing.
select d.event_id, d.subscription, coalesce(d.event_type, d.subscription), coalesce(o.event_version, d.event_version), d.status,
       coalesce(d.failure_history -> -1 ? 'superseded_at', false), d.queue, d.priority, coalesce(d.job_key, o.aggregate_id),
       d.unique_key, d.run_at, d.attempts, d.cycle, d.crashes, coalesce(d.waits_for = 'key', false), d.locked_by,
       w.host || ':' || w.pid, d.locked_at, d.lease_expires_at, d.cancelled_at, d.progress, d.last_error_code,
       d.last_error, coalesce(o.source, d.source), d.created_at, null::timestamptz,
       coalesce(d.workspace_id, o.workspace_id), d.generation, s.paused_at is not null,
       exists (select from /*schema*/worker as serving
               where d.subscription = any (serving.subscriptions) and not serving.stopping
                 and /*schema*/is_live(serving.seen_at)),
       /*schema*/as_pretty_text(coalesce(d.payload, o.payload)), null::jsonb, d.failure_history, d.seq
from /*schema*/job as d
left join lateral (select o.* from /*schema*/outbox as o where o.seq = d.seq limit 1) as o on true
left join /*schema*/subscription as s on s.name = d.subscription
left join /*schema*/worker as w on w.id = d.locked_by
where d.id = any (/*schema*/owed_of(%(id)s::uuid))
union all
select h.event_id, h.handler_name, coalesce(o.event_type, h.handler_name), o.event_version, 'done', false, null, null,
       o.aggregate_id, null, null, null, null, null, null, null, null, null, null, null, null, null, null, o.source, null,
       h.handled_at, o.workspace_id, h.generation, null, null, /*schema*/as_pretty_text(o.payload), h.result, h.failure_history,
       nullif(h.seq, 0)
from /*schema*/subscription as s
left join lateral (select o.* from /*schema*/outbox as o where o.id = %(id)s::uuid limit 1) as o on true
cross join lateral (  -- with LIMIT: only an index look-up will do, whatever the planner thinks of the number of receipts
    select h.* from /*schema*/event_handled as h
    where h.handler_name = s.name
      and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, %(id)s::uuid)
    limit 1) as h
where s.kind = 'job'
order by 2
