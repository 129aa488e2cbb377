-- relay_replayed: the dead letters of a relay that are to be sent after all, in the columns of take, up to the bytes of a batch.
-- `outcome` says which are in their stream already.
select case when exists (select from /*schema*/stream_ahead as a
                         where a.subscription = %(subscription)s and a.event_id = o.id) then 'ahead' end,
       0, null::bigint, null::double precision, null::bigint, d.id, null::integer, d.attempts + 1, o.seq, o.id, o.event_type,
       o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.channel, o.generation, o.workspace_id,
       o.aggregate_kind, o.aggregate_id, o.entity_version, /*schema*/as_text(d.said),
       coalesce(o.idempotency_key, o.id::text), nullif(/*schema*/as_text(o.trace_context), ''), o.origin
from (select d.*, coalesce(d.payload, o.payload) as said,
             sum(/*schema*/stored_bytes(coalesce(d.payload, o.payload)))
                 over (order by d.run_at, d.id rows between unbounded preceding and 1 preceding) as before
      from (select d.* from /*schema*/delivery as d
            where d.subscription = %(subscription)s and d.generation = 0 and d.partition = 0 and d.status = 'pending'
              and d.head and d.reached and d.run_at <= now()
            order by d.run_at, d.id limit %(limit)s) as d
      join /*schema*/outbox as o on o.seq = d.seq) as d
join /*schema*/outbox as o on o.seq = d.seq
where d.before is null or d.before < /*schema*/batch_bytes()
order by d.run_at, d.id
