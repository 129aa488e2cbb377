-- uncommitted: the events of the caller's own open transaction above `after`, in the columns of a take. For tests.
-- With a handler: those that it wants and has not handled yet. Reads by the index on (tx, seq). Locks nothing.
select null as outcome, null as partition, null as batch, null as due_in, null as cursor, null as delivery,
       null as duplicates,
       1 as attempt, o.seq, o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target,
       o.content_class, o.channel, o.generation, o.workspace_id, o.aggregate_kind, o.aggregate_id,
       o.entity_version, o.payload::text, coalesce(o.idempotency_key, o.id::text), o.trace_context::text, o.origin
from /*schema*/outbox as o
where o.tx = pg_current_xact_id_if_assigned()
  and o.seq > %(after)s
  and (%(handler)s::text is null
       or o.event_type = any (%(event_types)s::text[])
          and (o.target is null or o.target = %(context)s)
          and not exists (
              select from /*schema*/event_handled as h
              where h.handler_name = %(handler)s and h.event_id = o.id
                and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)))
order by o.seq
