-- relay_replayed: the dead letters of a relay that are to be sent after all, in the columns of take, up to the bytes of a batch.
-- `outcome` says which are in their stream already.
select case when exists (select from /*schema*/stream_ahead as a
                         where a.subscription = %(subscription)s and a.event_id = o.id) then 'ahead' end,
       0, null::bigint, null::double precision, null::bigint, d.id, null::integer, d.attempts + 1, o.seq, o.id, o.event_type,
       o.event_version, o.occurred_at, o.source, o.target, o.content_class, o.channel, o.generation, o.workspace_id,
       o.aggregate_kind, o.aggregate_id, o.entity_version, /*schema*/as_text(coalesce(d.payload, o.payload)),
       coalesce(o.idempotency_key, o.id::text), nullif(/*schema*/as_text(o.trace_context), ''), o.origin
from (select array(select d.id from /*schema*/delivery as d
                   where d.subscription = %(subscription)s and d.generation = 0 and d.partition = 0 and d.status = 'pending'
                     and d.head and d.reached and d.run_at <= now()
                     and exists (select from /*schema*/outbox as o where o.seq = d.seq)
                   order by d.run_at, d.id limit %(limit)s) as ids) as due
-- OFFSET 0: a planner that merges this subquery calls fitting for every row of delivery.
cross join lateral (
    select /*schema*/fitting($payloads$
        select coalesce(d.payload, o.payload)
        from unnest($1) with ordinality as c (id, place)
        join /*schema*/delivery as d on d.id = c.id
        join /*schema*/outbox as o on o.seq = d.seq
        order by c.place$payloads$, due.ids) as fits offset 0) as batch
cross join lateral unnest(due.ids[: coalesce(batch.fits, cardinality(due.ids))]) with ordinality as c (id, place)
join /*schema*/delivery as d on d.id = c.id
join /*schema*/outbox as o on o.seq = d.seq
order by c.place
