-- generations: each generation of each subscription: its owner, position, deliveries, and the live workers that serve it.
-- These are the owner's workers, or if it has none all others that are not strict; live means the same as in serving.
-- Locks nothing and reads no event: the lag is a difference of positions, deliveries are counted up to `most`.
with live as materialized (
    select w.generation, w.subscriptions, w.unable, w.strict, w.host || ':' || w.pid as place from /*schema*/worker as w
    where not w.stopping and /*schema*/is_live(w.seen_at)
),
able as materialized (
    select wanted.subscription, live.generation, array_agg(live.place order by live.place) as places,
           array_agg(live.place order by live.place) filter (where not live.strict) as adopting
    from live cross join unnest(live.subscriptions) as wanted (subscription)
    where wanted.subscription <> all (live.unable)
    group by wanted.subscription, live.generation
)
select c.generation, c.subscription, c.owner, greatest(drawn.seq - c.seq, 0),
       (select count(*) from (select from /*schema*/delivery as d
                              where d.subscription = c.subscription and d.generation = c.generation
                                and d.status = 'pending' limit %(most)s) as d),
       (select count(*) from (select from /*schema*/delivery as d
                              where d.subscription = c.subscription and d.generation = c.generation
                                and d.status = 'failed' limit %(most)s) as d),
       coalesce(own.places, '{}'),
       case when own.places is null then
           (select jsonb_object_agg(able.generation, able.adopting) from able
            where able.subscription = c.subscription and able.adopting is not null) end
from (select c.subscription, c.generation, coalesce(min(c.served_by), c.generation) as owner, min(c.seq) as seq
      from /*schema*/cursor as c group by c.subscription, c.generation) as c
join /*schema*/subscription as s on s.name = c.subscription and s.kind = 'handler'
cross join (select coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0) as seq) as drawn
left join able as own on own.subscription = c.subscription and own.generation = c.owner
order by c.generation, c.subscription
