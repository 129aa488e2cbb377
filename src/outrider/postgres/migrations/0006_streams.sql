-- Streams: relays that write to a broker, inboxes that read from one.
-- breaking: no
-- functions: bc00903cb3e2dfb8

alter table /*schema*/subscription
    drop constraint subscription_kind_check,
    add constraint subscription_kind_check check (kind in ('reader', 'handler', 'job', 'relay', 'inbox')),
    drop constraint subscription_event_types_check,
    add constraint subscription_event_types_check check (cardinality(event_types) > 0 or kind in ('job', 'inbox')),
    add column workspace_id text    check (octet_length(workspace_id) between 1 and 255),
    add column forwards     boolean not null default false;

comment on column /*schema*/subscription.event_types is 'null = every type; none = it reads nothing: a job that is only enqueued, an inbox';
comment on column /*schema*/subscription.workspace_id is 'of a relay: only the events of this tenant; null = all';
comment on column /*schema*/subscription.forwards is 'of a relay: also what an inbox brought';

-- How far each stream is written by its relay, or read by its inbox.
create table /*schema*/stream (
    subscription text        not null references /*schema*/subscription (name) on update cascade on delete cascade,
    name         text        not null check (octet_length(name) between 1 and 255),
    position     text        not null check (octet_length(position) between 1 and 255),
    events       bigint      not null default 0,
    moved_at     timestamptz not null default clock_timestamp(),
    primary key (subscription, name)
) with (fillfactor = 50);

comment on column /*schema*/stream.position is 'as the broker counts: everything up to here is written, or read, and committed here';
comment on column /*schema*/stream.events is 'how many events were written, or came in';

-- Where a relay stood at some moments: if a broker loses the end of a stream, it goes on from the newest that the broker
-- still has.
create table /*schema*/stream_mark (
    subscription text        not null references /*schema*/subscription (name) on update cascade on delete cascade,
    at           timestamptz not null default clock_timestamp(),
    positions    jsonb       not null,
    cursor       jsonb       not null,
    primary key (subscription, at)
);

comment on column /*schema*/stream_mark.cursor is 'the whole row of its cursor, read up to there';

-- Events that are in a stream already, although the relay's cursor has not come past them: it died between writing and
-- committing, or it goes back to a mark.
create table /*schema*/stream_ahead (
    subscription text not null references /*schema*/subscription (name) on update cascade on delete cascade,
    event_id     uuid not null,
    primary key (subscription, event_id)
);

-- Dead letters that a relay has sent after all, out of their turn: if it goes back to a mark from before that, they are owed
-- again. Kept as long as the marks.
create table /*schema*/stream_replayed (
    subscription    text        not null references /*schema*/subscription (name) on update cascade on delete cascade,
    at              timestamptz not null default clock_timestamp(),
    seq             bigint      not null,
    event_id        uuid        not null,
    event_type      text        not null,
    payload         jsonb,
    cycle           integer     not null,
    failure_history jsonb       not null,
    primary key (subscription, at, seq)
);

-- What an inbox could not make an event of.
create table /*schema*/stream_refused (
    id           bigint      generated always as identity primary key,
    subscription text        not null references /*schema*/subscription (name) on update cascade on delete cascade,
    stream       text        not null,
    position     text        not null,
    data         bytea       not null,
    message      text        not null,
    at           timestamptz not null default clock_timestamp()
);
create index stream_refused_of on /*schema*/stream_refused (subscription, id);

-- What has become of an event at each subscription that wants it. An event that a subscription passed before it wanted
-- its type, or that is older than the subscription, is none of its concern, and not here. A reader and a relay leave no
-- receipts: what has occurred since it was made, and it has passed, counts as delivered. Read it by event_id or seq.
create or replace view /*schema*/event_status as
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
   or fits.addressed and fits.wanted
      and (not place.passed or s.kind in ('reader', 'relay') and o.occurred_at >= s.created_at);
