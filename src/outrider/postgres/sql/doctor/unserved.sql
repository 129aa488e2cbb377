-- unserved: events and jobs that wait and that no worker takes, because the workers of their subscription are strict and of other
-- generations. By subscription and generation of the event or job, counted up to `most`; of events at most `scan` log positions of each
-- cursor are looked at. `to`: the newest generation that has a live worker there. Subscriptions without any worker are not among them.
-- Reads outbox by seq and by (tx, seq), delivery, and job_ready, skipping from one generation to the next. Locks nothing.
with recursive able as materialized (
    select served.subscription, w.generation, w.strict
    from /*schema*/worker as w cross join unnest(w.subscriptions) as served (subscription)
    where not w.stopping and /*schema*/is_live(w.seen_at) and served.subscription <> all (w.unable)
),
newest as materialized (
    select able.subscription, max(able.generation) as generation from able
    group by able.subscription having bool_and(able.strict)
),
event as (
    select c.subscription, found.generation, found.seq
    from newest
    join /*schema*/subscription as s on s.name = newest.subscription and s.kind = 'handler' and s.paused_at is null
    join /*schema*/cursor as c on c.subscription = s.name
    cross join lateral (
        select array(select distinct other.generation from /*schema*/cursor as other
                     where other.subscription = s.name and other.generation <> 0) as others) as open
    cross join lateral (
        select fresh.generation, fresh.seq from (
            select o.generation, o.seq, /*schema*/wanted(o, s, c, open.others, true) as wanted from /*schema*/outbox as o
            where o.seq > c.seq order by o.seq limit %(scan)s) as fresh
        where fresh.wanted
        union
        select o.generation, o.seq
        from (select owed.tx, c.owed_after as after from unnest(c.owing) as owed (tx)
              union all
              select found.tx, c.floor from /*schema*/late_transactions(
                  c.inflight, c.horizon, pg_current_snapshot(), c.floor, c.seq) as found (tx)) as late
        join /*schema*/outbox as o on o.tx = late.tx and o.seq > late.after and o.seq <= c.seq
        where /*schema*/wanted(o, s, c, open.others, true)
        union
        select coalesce((select o.generation from /*schema*/outbox as o where o.seq = parked.seq), c.generation), parked.seq
        from ((select d.seq from /*schema*/delivery as d
               where d.subscription = c.subscription and d.generation = c.generation and d.partition = c.partition
                 and d.status = 'pending' and d.head and d.reached limit %(scan)s)
              union all
              (select d.seq from /*schema*/delivery as d
               where d.subscription = c.subscription and d.generation = c.generation and d.partition = c.partition
                 and d.status = 'pending' and d.ordering_key is not null limit %(scan)s)) as parked) as found
    where not exists (select from able where able.subscription = c.subscription
                                         and able.generation = coalesce(c.served_by, c.generation))
),
lane as (
    select newest.subscription, (select min(j.generation) from /*schema*/job as j
                                 where j.subscription = newest.subscription and /*schema*/claimable(j)) as generation
    from newest join /*schema*/subscription as s on s.name = newest.subscription and s.kind = 'job' and s.paused_at is null
    union all
    select lane.subscription, (select min(j.generation) from /*schema*/job as j
                               where j.subscription = lane.subscription and /*schema*/claimable(j)
                                 and j.generation > lane.generation)
    from lane where lane.generation is not null
),
job as (
    select lane.subscription, lane.generation, least(count(*), %(most)s) as waiting
    from lane cross join lateral (
        select from /*schema*/job as j
        where j.subscription = lane.subscription and j.generation = lane.generation and /*schema*/claimable(j)
        limit %(most)s) as claimable
    group by lane.subscription, lane.generation
    union all
    -- Their worker died: see pick_suspect.
    select newest.subscription, suspect.generation, count(*)
    from newest cross join lateral (
        select j.generation from /*schema*/job as j
        where j.subscription = newest.subscription and j.status = 'pending' and j.waits_for is null and j.crashes > 0
        limit %(scan)s) as suspect
    group by newest.subscription, suspect.generation
)
select 'event' as kind, event.subscription, event.generation, least(count(*), %(most)s) as waiting, newest.generation as "to"
from event join newest using (subscription)
group by event.subscription, event.generation, newest.generation
union all
select 'job', job.subscription, job.generation, sum(job.waiting)::bigint, newest.generation
from job join newest using (subscription)
where not exists (select from able where able.subscription = job.subscription and able.generation = job.generation)
group by job.subscription, job.generation, newest.generation
order by 2, 3
