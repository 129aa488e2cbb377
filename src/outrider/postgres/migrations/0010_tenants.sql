-- Tenants: keys that are a tenant's own, turns for jobs, erased payloads.
-- breaking: no
-- functions: bef1d782b55eaf90

drop function if exists /*schema*/admit(text, text);
drop function if exists /*schema*/room(text, text);
drop function if exists /*schema*/pick_limited(bigint[], text[], bigint[], text[], smallint[], integer, timestamptz);

-- A key that the producer gave is its workspace's own: two tenants may use the same. First without a lock on the log, which may
-- be long: whoever publishes or handles goes on.
update /*schema*/event_handled as h
set idempotency_key = length(o.workspace_id) || ':' || o.workspace_id || ':' || h.idempotency_key
from /*schema*/outbox as o
where o.workspace_id is not null and o.idempotency_key is not null and h.seq = o.seq and h.event_id = o.id
  and h.idempotency_key = o.event_type || ':' || o.idempotency_key;

-- This waits for every batch that is being handled, and holds those that come.
alter table /*schema*/outbox add column erased_at timestamptz;
do $detached$
declare
    part text;
begin
    for part in
        select s.name from /*schema*/segment as s
        where s.detached_at is not null and to_regclass(format('/*schema*/%I', s.name)) is not null
    loop
        execute format('alter table /*schema*/%I add column if not exists erased_at timestamptz', part);
    end loop;
end
$detached$;
comment on column /*schema*/outbox.erased_at is 'its payload is gone, for good';

update /*schema*/event_handled as h
set idempotency_key = length(o.workspace_id) || ':' || o.workspace_id || ':' || h.idempotency_key
from /*schema*/outbox as o
where h.handled_at > now() - interval '1 hour'
  and o.workspace_id is not null and o.idempotency_key is not null and h.seq = o.seq and h.event_id = o.id
  and h.idempotency_key = o.event_type || ':' || o.idempotency_key;
comment on column /*schema*/event_handled.idempotency_key is
    'event type:key as the producer gave it, after length:workspace: where it has one; or the event''s id';

-- A line is the events of one key of one workspace.
update /*schema*/delivery as d
set workspace_id = o.workspace_id,
    ordering_key = case when d.ordering_key <> '' then
        length(o.workspace_id) || ':' || o.workspace_id || ':' || d.ordering_key else d.ordering_key end
from /*schema*/outbox as o
where o.seq = d.seq and o.workspace_id is not null and d.queue is null;
update /*schema*/delivery as d set workspace_id = o.workspace_id
from /*schema*/outbox as o
where o.seq = d.seq and o.workspace_id is not null and d.workspace_id is null;
comment on column /*schema*/delivery.ordering_key is 'what keeps later events waiting: the event''s key, after length:workspace: where it has one; empty = all wait for it; null = nothing';
comment on column /*schema*/delivery.unique_key is 'at most one pending job of a type and workspace has it';

drop index /*schema*/job_unique;
create unique index job_unique on /*schema*/delivery (subscription, coalesce(workspace_id, ''), unique_key)
    where status = 'pending' and unique_key is not null;
drop index /*schema*/job_waiting;
create index job_waiting on /*schema*/delivery (subscription, coalesce(workspace_id, ''), job_key, priority, run_at, id)
    where waiting;

-- One lane each: generation, queue, priority, with or without a workspace. Tenants share one, by time; those that take turns
-- have one each (job_turn), by the hash of their workspace. What has no workspace is not in that one, and pays nothing for it.
drop index /*schema*/job_due;
create index job_due on /*schema*/delivery
    (subscription, generation, queue, priority, num_nonnulls(workspace_id), run_at, id)
    where status = 'pending' and queue is not null and not waiting and crashes = 0;
create index job_turn on /*schema*/delivery
    (subscription, generation, queue, hashtextextended(workspace_id, 0), priority, run_at, id)
    where status = 'pending' and queue is not null and not waiting and crashes = 0 and workspace_id is not null;

alter table /*schema*/withdrawal add column outcomes jsonb;
comment on column /*schema*/withdrawal.outcomes is 'of an erased event: subscriptions without receipts that had read it';

-- What has become of an event at each subscription that wants it. An event that a subscription passed before it wanted
-- its type, or that is older than the subscription, is none of its concern, and not here. A reader and a relay leave no
-- receipts: what has occurred since it was made, and it has passed, counts as delivered. Read it by event_id or seq.
create or replace view /*schema*/event_status as
select o.id as event_id, o.seq, o.event_type, o.occurred_at, o.workspace_id, o.generation, s.name as subscription,
       case when h.event_id = o.id then 'delivered'
            when w.seq is not null then coalesce(w.outcomes ->> s.name, told.outcome, 'withdrawn')
            when d.status in ('failed', 'discarded') then d.status
            when h.handler_name is not null then 'delivered'
            when d.id is not null then d.status
            when place.passed then 'delivered'
            else 'pending'
       end as status,
       d.attempts, d.run_at, h.handled_at, nullif(h.event_id, o.id) as handled_as, d.last_error_code, d.last_error,
       coalesce(d.failure_history, case when h.event_id = o.id then h.failure_history end) as failure_history,
       o.erased_at
from /*schema*/outbox as o
cross join /*schema*/subscription as s
cross join lateral (
    select case s.kind when 'relay' then (s.forwards or o.origin is null)
                                         and (s.workspace_id is null or o.workspace_id = s.workspace_id) is true
                       else o.target is null or o.target = s.context end as addressed,
           s.event_types is null or o.event_type = any (s.event_types) as wanted) as fits
cross join lateral (
    select o.seq <= c.seq
           and not coalesce(o.tx = any (c.owing) and o.seq > c.owed_after, false)
           and not (o.seq > c.floor and o.tx < c.horizon and not pg_visible_in_snapshot(o.tx, c.inflight)) as passed
    from /*schema*/cursor as c
    where c.subscription = s.name and c.generation in (0, o.generation)
      and c.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (s.partitions - 1)
    order by c.generation desc limit 1) as place
-- With LIMIT: only an index look-up will do, whatever the planner thinks of the number of events with one id.
left join lateral (
    select h.* from /*schema*/event_handled as h
    where h.handler_name = s.name
      and h.idempotency_key = coalesce(
          coalesce(length(o.workspace_id) || ':' || o.workspace_id || ':', '') || o.event_type || ':'
              || o.idempotency_key, o.id::text)
      and (h.event_id = o.id or fits.addressed)
    limit 1) as h on true
left join lateral (
    select d.* from /*schema*/delivery as d where d.subscription = s.name and d.seq = o.seq limit 1) as d on true
left join lateral (select w.seq, w.outcomes from /*schema*/withdrawal as w where w.seq = o.seq limit 1) as w on true
-- How it stood when it was withdrawn: a reader leaves nothing else that says so.
left join lateral (
    select a.details -> 'outcomes' ->> s.name as outcome from /*schema*/audit as a
    where w.seq is not null and a.event_id = o.id and a.action = 'withdraw'
      and a.details -> 'outcomes' ->> s.name is not null
    order by a.id limit 1) as told on true
where h.handler_name is not null or d.id is not null or told.outcome is not null
   or w.outcomes ? s.name
   or fits.addressed and fits.wanted
      and (not place.passed or s.kind in ('reader', 'relay') and o.occurred_at >= s.created_at);

-- What a tenant may see of its own: the same, without errors, and only what is of app.workspace_id; unset and empty: nothing.
-- With the rights of the owner, not of who reads it, and with a barrier: no condition of the reader's meets other rows. From
-- the text of event_status, which may be made to apply policies of whoever reads it (tenants_plan), also from within another view.
do $own$
begin
    execute 'create view /*schema*/tenant_event with (security_barrier = true) as '
            'select e.event_id, e.event_type, e.occurred_at, e.subscription, e.status, e.handled_at, e.erased_at from ('
            || rtrim(pg_get_viewdef('/*schema*/event_status'::regclass), ';')
            || ') as e where e.workspace_id = nullif(current_setting(''app.workspace_id'', true), '''')';
end
$own$;
