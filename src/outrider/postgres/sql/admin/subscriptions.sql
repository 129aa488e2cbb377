-- subscriptions: every subscription: its position, its deliveries or jobs, and who serves it. Locks nothing and reads no event.
-- The lag is a difference of positions, those of other types and of rolled back transactions included; deliveries and jobs are
-- counted up to `most`. A job that is only enqueued reads nothing of the log.
select s.name, s.kind, s.context, s.event_types, s.partitions, s.ordering, s.paused_at,
       case when s.event_types = '{}' then 0 else greatest(drawn.seq - position.seq, 0) end as lag,
       (select count(*) from (select from /*schema*/unfinished as u where u.subscription = s.name limit %(most)s) as u) as parked,
       (select count(*) from (select from /*schema*/owed as d
                              where d.subscription = s.name and d.status = 'failed' limit %(most)s) as d) as dead,
       (select count(*) from /*schema*/worker as w
        where s.name = any (w.subscriptions) and /*schema*/is_live(w.seen_at)) as workers,
       (select count(*) from (select from /*schema*/job as j
                              where j.subscription = s.name and j.status = 'in_flight' limit %(most)s) as j) as running
from /*schema*/subscription as s
cross join (select coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0) as seq) as drawn
cross join lateral (select coalesce(min(c.seq), 0) as seq from /*schema*/cursor as c
                    where c.subscription = s.name) as position
where %(name)s::text is null or s.name = %(name)s
order by s.name
