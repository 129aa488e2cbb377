-- relay_replayed: dead letters of a relay that are to be sent after all, as take returns events; which are in their stream
-- already is in `outcome`.
select case when exists (select from /*schema*/stream_ahead as a
                         where a.subscription = %(subscription)s and a.event_id = o.id) then 'ahead' end,
       0, null::bigint, null::double precision, null::bigint, d.id, null::integer, d.attempts + 1, o.seq, o.id, o.event_type,
       o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.channel, o.generation, o.workspace_id,
       o.aggregate_kind, o.aggregate_id, o.entity_version, coalesce(d.payload, o.payload)::text,
       coalesce(o.idempotency_key, o.id::text), o.trace_context::text, o.origin
from (select d.* from /*schema*/delivery as d
      where d.subscription = %(subscription)s and d.generation = 0 and d.partition = 0 and d.status = 'pending'
        and d.head and d.reached and d.run_at <= now()
      order by d.run_at, d.id limit %(limit)s) as d
join /*schema*/outbox as o on o.seq = d.seq
order by d.run_at, d.id
