-- Handlers: receipts, what is owed out of line, the commit guard, wake-ups, workers.
-- breaking: yes
-- functions: 424f598a75c793f7

drop function if exists /*schema*/take(text, integer, integer, integer, bigint);
drop function if exists /*schema*/register(text, text, text, text[], integer, text);

alter table /*schema*/subscription
    drop constraint subscription_kind_check,
    add constraint subscription_kind_check check (kind in ('reader', 'handler')),
    add column ordering   text not null default 'key' check (ordering in ('key', 'none', 'total')),
    add column paused_at  timestamptz,
    add constraint subscription_total_order_is_one_line check (ordering <> 'total' or partitions = 1);

comment on column /*schema*/subscription.ordering is 'what waits for a failed event: its key, nothing, or everything';

-- The dedup ledger. Its primary key is the gate: whoever inserts the receipt runs the handler.
-- "C": keys are bytes, and time-ordered ids then go to the right edge of the index.
create table /*schema*/event_handled (
    handler_name    text collate "C" not null,
    idempotency_key text collate "C" not null,
    event_id        uuid             not null,
    seq             bigint           not null,
    handled_at      timestamptz      not null default now(),
    generation      bigint           not null,
    content_class   text             not null,
    result          jsonb,
    primary key (handler_name, idempotency_key)
);

comment on column /*schema*/event_handled.handler_name is 'the subscription';
comment on column /*schema*/event_handled.idempotency_key is 'event type:key as the producer gave it, or the event''s id';

-- What is owed out of line: failed events that wait for their retry, those that wait behind them, dead letters.
create table /*schema*/delivery (
    id              bigint      generated always as identity primary key,
    subscription    text        not null references /*schema*/subscription (name) on update cascade on delete cascade,
    generation      bigint      not null default 0,
    partition       integer     not null,
    seq             bigint      not null,
    event_id        uuid        not null,
    event_type      text        not null,
    ordering_key    text,
    status          text        not null check (status in ('pending', 'in_flight', 'failed')),
    head            boolean     not null,
    reached         boolean     not null,
    run_at          timestamptz not null,
    attempts        integer     not null default 0 check (attempts >= 0),
    suspect         boolean     not null default false,
    crashes         integer     not null default 0,
    last_error_code text,
    last_error      text,
    first_failed_at timestamptz,
    cycle           integer     not null default 1,
    failure_history jsonb       not null default '[]',
    created_at      timestamptz not null default now(),
    check (head or ordering_key is not null or status = 'failed')
);

comment on column /*schema*/delivery.ordering_key is 'what keeps later events waiting; null = nothing';
comment on column /*schema*/delivery.head is 'the first of its key: the only one that is retried';
comment on column /*schema*/delivery.reached is 'the cursor has come past it, so that everything before it has been read';
comment on column /*schema*/delivery.suspect is 'was in a batch whose worker died again and again: runs alone, counted before it runs';

create unique index delivery_event on /*schema*/delivery (subscription, seq);
create index delivery_due on /*schema*/delivery (subscription, generation, partition, run_at)
    where status = 'pending' and head and reached;
create unique index delivery_head on /*schema*/delivery (subscription, ordering_key)
    where status = 'pending' and head and ordering_key is not null;
create index delivery_line on /*schema*/delivery (subscription, ordering_key, seq) where status = 'pending' and ordering_key is not null;
create index delivery_failed on /*schema*/delivery (subscription, id) where status = 'failed';

alter table /*schema*/cursor
    add column id      bigint not null generated always as identity,
    add column takes   bigint not null default 0,
    add column excused bigint not null default 0;

comment on column /*schema*/cursor.takes is 'the sequence takes_<id> at the last commit; what it counted since then was rolled back';
comment on column /*schema*/cursor.excused is 'the sequence excused_<id> at the last commit: rollbacks in good order';

-- Takes are counted outside the transaction, so that a worker that dies in its batch leaves a trace; and so are those that
-- were rolled back in good order, so that they are not taken for deaths.
create function /*schema*/make_counter() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'INSERT' then
        execute format('create sequence if not exists /*schema*/takes_%s', new.id);
        execute format('create sequence if not exists /*schema*/excused_%s', new.id);
        execute format('grant usage on sequence /*schema*/takes_%1$s, /*schema*/excused_%1$s to public', new.id);
    else
        execute format('drop sequence if exists /*schema*/takes_%1$s, /*schema*/excused_%1$s', old.id);
    end if;
    return null;
end
$$;
create trigger make_counter after insert or delete on /*schema*/cursor
    for each row execute function /*schema*/make_counter();
do $existing$
declare
    n bigint;
begin
    for n in select id from /*schema*/cursor loop
        execute format('create sequence /*schema*/takes_%s', n);
        execute format('create sequence /*schema*/excused_%s', n);
        execute format('grant usage on sequence /*schema*/takes_%1$s, /*schema*/excused_%1$s to public', n);
    end loop;
end
$existing$;

-- A batch is settled when it is taken, and its handlers run after that. So nobody but the worker may commit: whoever
-- tries it before settle() gets this error, and the whole batch rolls back.
create function /*schema*/refuse_unsettled() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('outrider.settled', true) is distinct from new.takes::text then
        raise 'this transaction belongs to the worker: a handler must not commit it'
            using errcode = 'OR005', hint = 'Let the handler return; its effects and its receipt then commit together.';
    end if;
    return null;
end
$$;
create constraint trigger refuse_unsettled after update of takes on /*schema*/cursor
    deferrable initially deferred
    for each row when (old.takes is distinct from new.takes) execute function /*schema*/refuse_unsettled();

-- A poke, never data: one per channel and event type of a statement. Off: set [local] outrider.notify = 'off', or
-- alter database ... set outrider.notify = 'off'.
create function /*schema*/poke() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('outrider.notify', true) in ('off', 'after_commit') then
        return null;
    end if;
    perform pg_notify(fresh.channel, fresh.event_type)
    from (select distinct channel, event_type from inserted) as fresh;
    return null;
end
$$;
create trigger poke after insert on /*schema*/outbox
    referencing new table as inserted for each statement execute function /*schema*/poke();

create table /*schema*/worker (
    id            uuid        primary key,
    host          text        not null,
    pid           integer     not null,
    version       text        not null,
    generation    bigint      not null,
    subscriptions text[]      not null,
    listening     boolean     not null default false,
    stopping      boolean     not null default false,
    started_at    timestamptz not null default now(),
    seen_at       timestamptz not null default now()
);

-- What a take returns: a first row that says what happened, with no event; then the events in their order.
create type /*schema*/taken as (
    outcome text, partition integer, batch bigint, due_in double precision, cursor bigint, delivery bigint,
    conceded integer,
    attempt integer, seq bigint, id uuid, event_type text, event_version integer, occurred_at timestamptz, source text,
    target text, content_class text, channel text, generation bigint, workspace_id text, aggregate_kind text,
    aggregate_id text, entity_version bigint, payload text, idempotency_key text, trace_context text, origin text
);
