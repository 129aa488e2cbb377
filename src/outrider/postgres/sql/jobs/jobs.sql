-- jobs: the next jobs of these types, by state: running; pending, in the order in which they will run; failed, the newest
-- first; cancelled, superseded and discarded; done, as far as they left a receipt, the last to be enqueued
-- first. At most `limit` of each state, each with its place in it; `queue`: only of that one. Without states: the jobs of `ids`.
-- Locks nothing. Reads jobs by index and receipts by primary key, `limit` rows of each type and lane; of what waits for its key,
-- and of what was given up, at most `most` rows are looked at: neither has an order in an index.
with recursive kind as materialized (
    select n.name from unnest(%(names)s::text[]) as n (name)
),
lane as (
    select first.* from kind
    cross join lateral (
        select j.subscription, j.generation, j.queue, num_nonnulls(j.workspace_id) as tenanted
        from /*schema*/job as j
        where j.subscription = kind.name and /*schema*/claimable(j)
        order by j.generation, j.queue, num_nonnulls(j.workspace_id) limit 1) as first
    union all
    select next.* from lane
    cross join lateral (
        select j.subscription, j.generation, j.queue, num_nonnulls(j.workspace_id) as tenanted
        from /*schema*/job as j
        where j.subscription = lane.subscription and /*schema*/claimable(j)
          and (j.generation, j.queue, num_nonnulls(j.workspace_id)) > (lane.generation, lane.queue, lane.tenanted)
        order by j.generation, j.queue, num_nonnulls(j.workspace_id) limit 1) as next
),
found as (
    select j.* from kind cross join lateral (
        select j.* from /*schema*/job as j
        where j.subscription = kind.name and j.status = 'in_flight' and (%(queue)s::text is null or j.queue = %(queue)s)
        order by j.lease_expires_at limit %(most)s) as j
    where 'running' = any (%(states)s)
    union all
    select j.* from lane cross join lateral (
        select j.* from /*schema*/job as j
        where j.subscription = lane.subscription and j.generation = lane.generation and j.queue = lane.queue
          and num_nonnulls(j.workspace_id) = lane.tenanted and /*schema*/claimable(j)
        order by /*schema*/claim_at(j), j.id limit %(limit)s) as j
    where 'pending' = any (%(states)s) and (%(queue)s::text is null or lane.queue = %(queue)s)
    union all
    select j.* from kind cross join lateral (
        select j.* from /*schema*/job as j
        where j.subscription = kind.name and j.status = 'pending' and j.waits_for is null and j.crashes > 0
          and (%(queue)s::text is null or j.queue = %(queue)s)
        order by /*schema*/claim_at(j), j.id limit %(limit)s) as j
    where 'pending' = any (%(states)s)
    union all
    select j.* from kind cross join lateral (
        select j.* from /*schema*/job as j
        where j.subscription = kind.name and j.waits_for = 'time' and (%(queue)s::text is null or j.queue = %(queue)s)
        order by j.run_at, j.id limit %(limit)s) as j
    where 'pending' = any (%(states)s)
    union all
    select j.* from kind cross join lateral (
        select j.* from /*schema*/job as j
        where j.subscription = kind.name and j.waits_for = 'key' and (%(queue)s::text is null or j.queue = %(queue)s)
        limit %(most)s) as j
    where 'pending' = any (%(states)s)
    union all
    select j.* from kind cross join lateral (
        select j.* from /*schema*/job as j
        where j.subscription = kind.name and j.status = 'failed' and (%(queue)s::text is null or j.queue = %(queue)s)
        order by j.id desc limit %(limit)s) as j
    where 'failed' = any (%(states)s)
    union all
    select j.* from (select j.* from /*schema*/job as j order by j.id desc limit %(most)s) as j join kind
        on kind.name = j.subscription
    where 'cancelled' = any (%(states)s) and j.status = 'discarded' and (%(queue)s::text is null or j.queue = %(queue)s)
    union all
    select j.* from /*schema*/job as j where j.id = any (%(ids)s::bigint[])
),
ranked as (
    select found.*, row_number() over (
        partition by found.status
        order by case when found.status in ('failed', 'discarded') then -found.id end,
                 case when found.status = 'in_flight' then found.locked_at end, found.waits_for is not distinct from 'time',
                 case when found.waits_for = 'time' then found.run_at end,
                 found.run_at - found.priority * interval '1 minute', found.id) as place
    from found
),
done as (
    select kind.name, h.* from kind cross join lateral (
        select h.event_id, h.handled_at, h.generation, h.result, h.idempotency_key, nullif(h.seq, 0) as seq
        from /*schema*/event_handled as h
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
select d.event_id, d.subscription, coalesce(d.event_type, d.subscription), d.event_version, d.status,
       coalesce(d.failure_history -> -1 ? 'superseded_at', false), d.queue, d.priority, d.job_key, d.unique_key, d.run_at,
       d.attempts, d.cycle, d.crashes, coalesce(d.waits_for = 'key', false), d.locked_by, w.host || ':' || w.pid, d.locked_at,
       d.lease_expires_at, d.cancelled_at, d.progress, d.last_error_code, d.last_error, d.source, d.created_at, null::timestamptz,
       d.workspace_id, d.generation, served.paused, served.served, null::text, null::jsonb, null::jsonb, d.seq,
       d.place
from ranked as d
join served on served.name = d.subscription
left join /*schema*/worker as w on w.id = d.locked_by
where d.place <= %(limit)s
union all
select done.event_id, done.name, done.name, null, 'done', false, null, null, null, null, null, null, null, null, null, null,
       null, null, null, null, null, null, null, null, null, done.handled_at, null, done.generation, null, null, null,
       done.result, null, done.seq, row_number() over (order by done.event_id desc)
from done
