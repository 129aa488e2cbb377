-- Jobs: leased work in the table of what is owed; schedules.
-- breaking: no
-- functions: def42d4fb4e3611f

alter table /*schema*/subscription
    drop constraint subscription_kind_check,
    add constraint subscription_kind_check check (kind in ('reader', 'handler', 'job')),
    drop constraint subscription_event_types_check,
    add constraint subscription_event_types_check check (cardinality(event_types) > 0 or kind = 'job'),
    add column lease           interval check (lease > interval '0'),
    add column timeout         interval check (timeout > interval '0'),
    add column concurrency     integer  check (concurrency > 0),
    add column key_concurrency integer  check (key_concurrency > 0);

comment on column /*schema*/subscription.event_types is 'null = every type; none = a job that is only enqueued';
comment on column /*schema*/subscription.lease is 'so long a job is its worker''s own, from each renewal';
comment on column /*schema*/subscription.timeout is 'a job that runs longer is not renewed any more';
comment on column /*schema*/subscription.concurrency is 'so many of these jobs run at the same time, over all workers';
comment on column /*schema*/subscription.key_concurrency is 'so many with the same key';

-- Whoever enqueues a job needs no code for it, and it may never have been registered. Without the foreign key an enqueue
-- also locks no row that others lock at the same time.
alter table /*schema*/delivery
    drop constraint delivery_subscription_fkey,
    drop constraint delivery_check,
    alter column seq drop not null,
    add column queue            text check (octet_length(queue) between 1 and 63),
    add column priority         smallint not null default 0 check (priority between -100 and 100),
    add column job_key          text check (octet_length(job_key) between 1 and 512),
    add column unique_key       text check (octet_length(unique_key) between 1 and 900),
    add column waiting          boolean  not null default false,
    add column event_version    integer,
    add column source           text,
    add column workspace_id     text,
    add column trace_context    jsonb,
    add column locked_by        uuid,
    add column locked_at        timestamptz,
    add column lease_token      bigint,
    add column lease_expires_at timestamptz,
    add column cancelled_at     timestamptz,
    add column progress         jsonb,
    add constraint delivery_check check (
        head or ordering_key is not null or status in ('failed', 'discarded') or queue is not null),
    add constraint delivery_is_event_or_job check (seq is not null or queue is not null),
    add constraint delivery_lease_check check (
        (status = 'in_flight') = (lease_token is not null) and (status = 'in_flight') = (lease_expires_at is not null));

comment on column /*schema*/delivery.event_id is 'the event; for an enqueued job the job itself';
comment on column /*schema*/delivery.payload is 'of an enqueued job; of an event: what its handler gets instead of its own, edited for a replay';
comment on column /*schema*/delivery.queue is 'null = no job, but a failed event';
comment on column /*schema*/delivery.priority is 'one step is worth a minute of waiting';
comment on column /*schema*/delivery.unique_key is 'at most one pending job of a type has it';
comment on column /*schema*/delivery.waiting is 'as many with its key are running as may';
comment on column /*schema*/delivery.lease_token is 'whoever settles must name it: a worker that lost its lease cannot';
comment on column /*schema*/delivery.cancelled_at is 'somebody wants it to stop';

drop index /*schema*/delivery_event;
create unique index delivery_event on /*schema*/delivery (subscription, seq) where seq is not null;

-- One lane each: generation, queue, priority. Within a lane the order is that of the index; between lanes a step of
-- priority weighs as much as a minute (claim).
create index job_due on /*schema*/delivery (subscription, generation, queue, priority, run_at, id)
    where status = 'pending' and queue is not null and not waiting and crashes = 0;
create index job_suspect on /*schema*/delivery (subscription, run_at, id)
    where status = 'pending' and queue is not null and not waiting and crashes > 0;
create unique index job_unique on /*schema*/delivery (subscription, unique_key)
    where status = 'pending' and unique_key is not null;
create index job_running on /*schema*/delivery (subscription, lease_expires_at) where status = 'in_flight';
create index job_cancelled on /*schema*/delivery (locked_by) where status = 'in_flight' and cancelled_at is not null;
create index job_waiting on /*schema*/delivery (subscription, job_key, priority, run_at, id) where waiting;

create sequence /*schema*/lease_token;

alter table /*schema*/worker add column queues text[];
comment on column /*schema*/worker.queues is 'null = jobs of every queue';

-- What a claim returns: the jobs in their order; then a row that says when to look again and what to stop.
create type /*schema*/claimed as (
    head jsonb,
    delivery bigint, token bigint, subscription text, lease double precision, attempt integer, crashes integer, queue text,
    priority smallint, run_at timestamptz, id uuid, event_type text, event_version integer, occurred_at timestamptz,
    source text, generation bigint, workspace_id text, key text, payload text, trace_context text, event jsonb
);

-- When each schedule last fired: whoever moves it on enqueues the job, in the same transaction.
create table /*schema*/schedule (
    name       text        primary key check (octet_length(name) between 1 and 200),
    job_type   text        not null,
    cron       text        not null,
    time_zone  text        not null,
    fired_at   timestamptz not null,
    updated_at timestamptz not null default now()
);
comment on column /*schema*/schedule.fired_at is 'the newest time that was fired, or passed over; a new schedule begins now';
