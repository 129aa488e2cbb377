-- relay_owed: of these events, their deliveries (they were rejected, or are dead letters), and which are in their stream already.
-- By (subscription, seq) and (subscription, event_id).
select e.seq, d.id, d.status, d.attempts, extract(epoch from d.run_at - clock_timestamp())::double precision,
       a.event_id is not null, /*schema*/as_text(d.payload)
from unnest(%(seqs)s::bigint[], %(ids)s::uuid[]) as e (seq, id)
left join lateral (
    select d.* from /*schema*/delivery as d where d.subscription = %(subscription)s and d.seq = e.seq limit 1) as d on true
left join lateral (
    select a.event_id from /*schema*/stream_ahead as a
    where a.subscription = %(subscription)s and a.event_id = e.id limit 1) as a on true
where d.id is not null or a.event_id is not null
