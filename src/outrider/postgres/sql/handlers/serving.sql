-- serving: the generations that have cursors at these subscriptions, and whether a worker of a generation serves them:
-- those that are its own, or were moved to it; and those whose owner's workers are not there. A worker is there while
-- it was seen in the last 30 s and does not end; for its owner it must also know all types that the subscription wants.
-- abandoned: the generation has no worker at all that is there. Rows without a subscription: every generation of which
-- there is a trace anywhere, since its publishers poke a channel of their own. Reads cursors and workers, locks
-- nothing.
with live as materialized (
    select w.generation, w.subscriptions, w.unable from /*schema*/worker as w
    where not w.stopping and /*schema*/is_live(w.seen_at)
)
select c.subscription, c.generation, s.event_types,
       c.owner = %(generation)s or not exists (
           select from live where live.generation = c.owner and c.subscription = any (live.subscriptions)
                              and c.subscription <> all (live.unable)) as served,
       not exists (
           select from live
           where live.generation = c.generation and c.subscription = any (live.subscriptions)) as abandoned
from (select distinct c.subscription, c.generation, coalesce(c.served_by, c.generation) as owner
      from /*schema*/cursor as c where c.subscription = any (%(subscriptions)s::text[])) as c
join /*schema*/subscription as s on s.name = c.subscription
union all
select null, trace.generation, null, null, null
from (select live.generation from live union select c.generation from /*schema*/cursor as c) as trace
order by 1, 2
