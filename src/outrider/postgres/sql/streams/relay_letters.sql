-- relay_letters: of each relay the events by type that were rejected or are to be sent again, and its dead letters: the number that wait,
-- when the oldest of them occurred, and the number of dead letters. Counted up to `most` for each relay and state.
select d.subscription, d.event_type, count(*) filter (where d.status = 'pending') as waiting,
       min(o.occurred_at) filter (where d.status = 'pending') as occurred_at, count(*) filter (where d.status = 'failed') as dead
from /*schema*/subscription as s
cross join unnest(array['pending', 'failed']) as state (status)
cross join lateral (
    select d.subscription, d.event_type, d.status, d.seq from /*schema*/delivery as d
    where d.subscription = s.name and d.status = state.status limit %(most)s) as d
left join /*schema*/outbox as o on o.seq = d.seq and d.status = 'pending'
where s.kind = 'relay'
group by 1, 2
