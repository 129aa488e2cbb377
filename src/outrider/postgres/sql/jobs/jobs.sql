-- jobs: the next jobs of these types, by state: running; pending, in the order in which they will run; failed, the newest
-- first; cancelled, superseded and discarded; done, as far as they left a receipt, the last to be enqueued
-- first. At most `limit` of each state, each with its place in it; `queue`: only of that one.
-- Locks nothing. Reads delivery by index and receipts by primary key, `limit` rows of each type and lane; of what waits for
-- its key, and of what was given up, at most `most` rows are looked at: neither has an order in an index.
with recursive kind as materialized (
    select n.name from unnest(%(names)s::text[]) as n (name)
),
lane as (
    select first.* from kind
    cross join lateral (
        select d.subscription, d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id) as tenanted
        from /*schema*/delivery as d
        where d.subscription = kind.name and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
        order by d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id) limit 1) as first
    union all
    select next.* from lane
    cross join lateral (
        select d.subscription, d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id) as tenanted
        from /*schema*/delivery as d
        where d.subscription = lane.subscription
          and (d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id))
              > (lane.generation, lane.queue, lane.priority, lane.tenanted)
          and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
        order by d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id) limit 1) as next
),
found as (
    select d.* from kind cross join lateral (
        select d.* from /*schema*/delivery as d
        where d.subscription = kind.name and d.status = 'in_flight' and (%(queue)s::text is null or d.queue = %(queue)s)
        order by d.lease_expires_at limit %(most)s) as d
    where 'running' = any (%(states)s)
    union all
    select d.* from lane cross join lateral (
        select d.* from /*schema*/delivery as d
        where d.subscription = lane.subscription and d.generation = lane.generation and d.queue = lane.queue
          and d.priority = lane.priority and num_nonnulls(d.workspace_id) = lane.tenanted
          and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
        order by d.run_at, d.id limit %(limit)s) as d
    where 'pending' = any (%(states)s) and (%(queue)s::text is null or lane.queue = %(queue)s)
    union all
    select d.* from kind cross join lateral (
        select d.* from /*schema*/delivery as d
        where d.subscription = kind.name and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes > 0
          and (%(queue)s::text is null or d.queue = %(queue)s)
        order by d.run_at, d.id limit %(limit)s) as d
    where 'pending' = any (%(states)s)
    union all
    select d.* from kind cross join lateral (
        select d.* from /*schema*/delivery as d
        where d.subscription = kind.name and d.job_key is not null and d.queue is not null and d.waiting
          and (%(queue)s::text is null or d.queue = %(queue)s)
        limit %(most)s) as d
    where 'pending' = any (%(states)s)
    union all
    select d.* from kind cross join lateral (
        select d.* from /*schema*/delivery as d
        where d.subscription = kind.name and d.status = 'failed' and d.queue is not null
          and (%(queue)s::text is null or d.queue = %(queue)s)
        order by d.id desc limit %(limit)s) as d
    where 'failed' = any (%(states)s)
    union all
    select d.* from (select d.* from /*schema*/delivery as d order by d.id desc limit %(most)s) as d join kind
        on kind.name = d.subscription
    where 'cancelled' = any (%(states)s) and d.status = 'discarded' and d.queue is not null
      and (%(queue)s::text is null or d.queue = %(queue)s)
),
ranked as (
    select found.*, row_number() over (
        partition by found.status
        order by case when found.status in ('failed', 'discarded') then -found.id end,
                 case when found.status = 'in_flight' then found.locked_at
                      else found.run_at - found.priority * interval '1 minute' end, found.run_at, found.id) as place
    from found
),
done as (
    select kind.name, h.* from kind cross join lateral (
        select h.event_id, h.handled_at, h.generation, h.result, h.idempotency_key from /*schema*/event_handled as h
        where h.handler_name = kind.name order by h.idempotency_key desc limit %(limit)s) as h
    where 'done' = any (%(states)s) and %(queue)s::text is null
    order by h.event_id desc limit %(limit)s
),
served as materialized (
    select kind.name, s.paused_at is not null as paused,
           exists (select from /*schema*/worker as w
                   where kind.name = any (w.subscriptions) and not w.stopping
                     and /*schema*/is_live(w.seen_at)) as served
    from kind left join /*schema*/subscription as s on s.name = kind.name
)
select d.event_id, d.subscription, d.event_type, d.event_version, d.status,
       coalesce(d.failure_history -> -1 ? 'superseded_at', false), d.queue, d.priority, d.job_key, d.unique_key, d.run_at,
       d.attempts, d.cycle, d.crashes, d.waiting, d.locked_by, w.host || ':' || w.pid, d.locked_at, d.lease_expires_at,
       d.cancelled_at, d.progress, d.last_error_code, d.last_error, d.source, d.created_at, null::timestamptz,
       d.workspace_id, d.generation, served.paused, served.served, null::text, null::jsonb, null::jsonb, d.place
from ranked as d
join served on served.name = d.subscription
left join /*schema*/worker as w on w.id = d.locked_by
where d.place <= %(limit)s
union all
select done.event_id, done.name, done.name, null, 'done', false, null, null, null, null, null, null, null, null, null, null,
       null, null, null, null, null, null, null, null, null, done.handled_at, null, done.generation, null, null, null,
       done.result, null, row_number() over (order by done.event_id desc)
from done
