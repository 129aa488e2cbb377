-- fates: what became of one event at each subscription that it concerns, and what it waits for there.
-- Reads event_status by seq, the rest by primary key and by ordering key; workers are few. Locks nothing.
select e.subscription, s.kind, e.status, e.attempts, e.run_at, e.handled_at, e.handled_as, e.last_error_code, e.last_error,
       e.failure_history, d.buried_at, d.suspect, d.reached, d.waits_for_key, d.cancelled_at,
       (select p.updated_at from /*schema*/setting as p where p.name = 'paused' and p.value <> 0) as all_paused_at,
       s.paused_at, c.open_until, ahead.event_id, ahead.seq, serving.workers, serving.able,
       d.created_at, d.locked_at, (select w.host || ':' || w.pid from /*schema*/worker as w where w.id = d.locked_by) as worker
from /*schema*/event_status as e
join /*schema*/outbox as o on o.seq = e.seq
join /*schema*/subscription as s on s.name = e.subscription
left join lateral (
    select d.generation, d.buried_at, d.suspect, d.reached, false as waits_for_key, null::timestamptz as cancelled_at,
           d.created_at, null::timestamptz as locked_at, null::uuid as locked_by
    from /*schema*/delivery as d where d.subscription = e.subscription and d.seq = e.seq
    union all
    select j.generation, j.buried_at, j.crashes > 0, true, j.waits_for = 'key', j.cancelled_at, j.created_at, j.locked_at, j.locked_by
    from /*schema*/job as j where j.subscription = e.subscription and j.seq = e.seq) as d on true
left join lateral (
    select c.generation, case when c.open_until > clock_timestamp() then c.open_until end as open_until
    from /*schema*/cursor as c
    where c.subscription = s.name and c.generation in (0, coalesce(d.generation, o.generation))
      and c.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (s.partitions - 1)
    order by c.generation desc limit 1) as c on true
left join lateral (
    select f.event_id, f.seq from /*schema*/delivery as f
    where f.subscription = s.name and f.generation = c.generation and f.status = 'pending' and f.seq < o.seq
      and f.ordering_key = /*schema*/ordering_key(s.ordering, o.workspace_id, o.aggregate_id)
    order by f.seq limit 1) as ahead on e.status = 'pending'
cross join lateral (
    select count(*) as workers, count(*) filter (where s.name <> all (w.unable)) as able from /*schema*/worker as w
    where s.name = any (w.subscriptions) and not w.stopping and /*schema*/is_live(w.seen_at)
    ) as serving
where e.seq = %(seq)s
order by e.subscription
