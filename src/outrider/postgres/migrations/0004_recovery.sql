-- Recovery and rollout: generations, dead letters by what went wrong, withdrawn events, an audit, circuit breakers.
-- breaking: no
-- functions: 2f25601290be07d8

-- Another signature is another function: whoever could call the old one can call the new one, which comes below.
do $replay$
declare
    callers text[] := array(
        select a.grantee::regrole from pg_proc as p cross join aclexplode(p.proacl) as a
        where p.oid = to_regprocedure('/*schema*/outbox_replay(uuid, bigint, text, text)')
          and a.grantee not in (0, p.proowner));
    caller  text;
begin
    drop function if exists /*schema*/outbox_replay(uuid, bigint, text, text);
    create function /*schema*/outbox_replay(
        p_event_id uuid, p_new_generation bigint, p_replayed_by text, p_subscription text, p_force boolean, p_payload jsonb
    ) returns table (subscription text, outcome text) language sql as 'select null, null';
    foreach caller in array callers loop
        execute format('grant execute on function /*schema*/outbox_replay to %s', caller);
    end loop;
end
$replay$;
drop function if exists /*schema*/promote(text, text[]);
drop function if exists /*schema*/failure(integer, integer, text, text, text);

alter table /*schema*/cursor
    add column served_by  bigint,
    add column failures   integer not null default 0,
    add column open_until timestamptz;

comment on column /*schema*/cursor.generation is '0 = whatever has no cursor of its own generation: without generations, everything';
comment on column /*schema*/cursor.served_by is 'the generation whose workers serve it; null = its own';
comment on column /*schema*/cursor.failures is 'in a row, where the handler has a breaker';
comment on column /*schema*/cursor.open_until is 'the breaker is open: nothing is taken before; after it one event at a time, until one succeeds';

-- What errors have in common, without what differs from one event to the next: ids, numbers, quoted values, long tails.
create function /*schema*/error_fingerprint(p_code text, p_message text) returns text
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select left(md5(coalesce(p_code, '') || ' ' || regexp_replace(regexp_replace(regexp_replace(
        left(coalesce(p_message, ''), 500),
        '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+', '#', 'g'),
        '''[^'']*''|"[^"]*"', '?', 'g'),
        '[0-9]+', '#', 'g')), 12)
$$;

alter table /*schema*/delivery
    drop constraint delivery_status_check,
    add constraint delivery_status_check check (status in ('pending', 'in_flight', 'failed', 'discarded')),
    drop constraint delivery_check,
    add constraint delivery_check check (head or ordering_key is not null or status in ('failed', 'discarded')),
    add column payload     jsonb,
    add column buried_at   timestamptz,
    add column fingerprint text generated always as (
        case when last_error_code is not null then /*schema*/error_fingerprint(last_error_code, last_error) end) stored;

comment on column /*schema*/delivery.generation is 'the generation of the cursor that it belongs to';
comment on column /*schema*/delivery.payload is 'what its handler gets instead of the event''s own: it was edited for a replay';
comment on column /*schema*/delivery.fingerprint is 'errors with the same one have the same cause, as far as their texts say';

update /*schema*/delivery set buried_at = coalesce(first_failed_at, created_at) where status = 'failed';

-- A line is the events of one key and one generation: order holds within a generation.
drop index /*schema*/delivery_head;
drop index /*schema*/delivery_line;
create unique index delivery_head on /*schema*/delivery (subscription, generation, ordering_key)
    where status = 'pending' and head and ordering_key is not null;
create index delivery_line on /*schema*/delivery (subscription, generation, ordering_key, seq)
    where status = 'pending' and ordering_key is not null;
create index delivery_fingerprint on /*schema*/delivery (subscription, fingerprint) where status = 'failed';

alter table /*schema*/event_handled add column failure_history jsonb;
comment on column /*schema*/event_handled.failure_history is 'of an event that was handled only after it had failed';

-- Events that nobody shall take any more. The log itself stays as it was written.
create table /*schema*/withdrawal (
    seq          bigint      primary key,
    event_id     uuid        not null,
    withdrawn_at timestamptz not null default now(),
    withdrawn_by text        not null,
    reason       text
);

-- What operators did, and what was there before.
create table /*schema*/audit (
    id           bigint      generated always as identity primary key,
    at           timestamptz not null default clock_timestamp(),
    role         text        not null default session_user,
    by           text        not null,
    action       text        not null,
    subscription text,
    event_id     uuid,
    details      jsonb       not null default '{}'
);
create index audit_of_event on /*schema*/audit (event_id) where event_id is not null;

alter table /*schema*/worker
    add column unable         text[]  not null default '{}',
    add column schema_version integer;

comment on column /*schema*/worker.unable is 'subscriptions that want event types which its code does not know';
comment on column /*schema*/worker.schema_version is 'the newest migration that its code knows; null = code from before 0004';

insert into /*schema*/setting (name, value, least, greatest) values ('paused', 0, 0, 1);

-- What has become of an event at each subscription that wants it. An event that a subscription passed before it wanted
-- its type, or that is older than the subscription, is none of its concern, and not here. A reader leaves no receipts: what
-- has occurred since it was made, and it has passed, counts as delivered. Read it by event_id or seq.
create view /*schema*/event_status as
select o.id as event_id, o.seq, o.event_type, o.occurred_at, o.workspace_id, o.generation, s.name as subscription,
       case when h.event_id = o.id then 'delivered'
            when w.seq is not null then coalesce(told.outcome, 'withdrawn')
            when d.status in ('failed', 'discarded') then d.status
            when h.handler_name is not null then 'delivered'
            when d.id is not null then d.status
            when place.passed then 'delivered'
            else 'pending'
       end as status,
       d.attempts, d.run_at, h.handled_at, nullif(h.event_id, o.id) as handled_as, d.last_error_code, d.last_error,
       coalesce(d.failure_history, case when h.event_id = o.id then h.failure_history end) as failure_history
from /*schema*/outbox as o
cross join /*schema*/subscription as s
cross join lateral (
    select o.target is null or o.target = s.context as addressed,
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
      and h.idempotency_key = coalesce(o.event_type || ':' || o.idempotency_key, o.id::text)
      and (h.event_id = o.id or fits.addressed)
    limit 1) as h on true
left join lateral (
    select d.* from /*schema*/delivery as d where d.subscription = s.name and d.seq = o.seq limit 1) as d on true
left join lateral (select w.seq from /*schema*/withdrawal as w where w.seq = o.seq limit 1) as w on true
-- How it stood when it was withdrawn: a reader leaves nothing else that says so.
left join lateral (
    select a.details -> 'outcomes' ->> s.name as outcome from /*schema*/audit as a
    where w.seq is not null and a.event_id = o.id and a.action = 'withdraw'
      and a.details -> 'outcomes' ->> s.name is not null
    order by a.id limit 1) as told on true
where h.handler_name is not null or d.id is not null or told.outcome is not null
   or fits.addressed and fits.wanted and (not place.passed or s.kind = 'reader' and o.occurred_at >= s.created_at);
