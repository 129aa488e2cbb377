-- serving: the generations that have cursors at these subscriptions, and whether a worker of a given generation serves each.
-- A worker serves its own generation, those that an operator moved to it, and those whose owner has no live worker. A worker is
-- live if it was seen in the last 30 s and is not stopping; to count for its owner it must also know all types that the
-- subscription wants. A strict worker serves what it owns. abandoned: the generation has no live worker at all.
-- Rows without a subscription: every generation of which there is any trace, because its publishers notify a channel of its own.
-- Reads cursors and workers. Locks nothing.
with live as materialized (
    select w.generation, w.subscriptions, w.unable from /*schema*/worker as w
    where not w.stopping and /*schema*/is_live(w.seen_at)
)
select c.subscription, c.generation, s.event_types, c.owner = %(generation)s as owned,
       not exists (
           select from live where live.generation = c.owner and c.subscription = any (live.subscriptions)
                              and c.subscription <> all (live.unable)) as unserved,
       not exists (
           select from live
           where live.generation = c.generation and c.subscription = any (live.subscriptions)) as abandoned
from (select distinct c.subscription, c.generation, coalesce(c.served_by, c.generation) as owner
      from /*schema*/cursor as c where c.subscription = any (%(subscriptions)s::text[])) as c
join /*schema*/subscription as s on s.name = c.subscription
union all
select null, trace.generation, null, null, null, null
from (select live.generation from live union select c.generation from /*schema*/cursor as c) as trace
order by 1, 2
