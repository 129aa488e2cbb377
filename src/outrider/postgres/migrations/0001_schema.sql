-- The schema: tables with their indexes, triggers and views, by subject. Functions are in sql/*/functions.
-- breaking: yes
-- functions: f5fb5c9970415291

-- The functions of triggers. They are empty here and get their bodies with all others, at the end.
create function /*schema*/accept_event() returns trigger language plpgsql as 'begin return new; end';
create function /*schema*/await_time() returns trigger language plpgsql as 'begin return new; end';
create function /*schema*/make_counter() returns trigger language plpgsql as 'begin return new; end';
create function /*schema*/refuse_retention() returns trigger language plpgsql as 'begin return new; end';
create function /*schema*/refuse_unbounded() returns trigger language plpgsql as 'begin return new; end';
create function /*schema*/refuse_unbounded_payload() returns trigger language plpgsql as 'begin return new; end';
create function /*schema*/refuse_unsettled() returns trigger language plpgsql as 'begin return new; end';

-- The functions of columns. They stand here and not among the others, because rows keep what they return.
do $uuid7$
begin
    if current_setting('server_version_num')::int >= 180000 then
        create function /*schema*/uuid7() returns uuid
            language sql volatile parallel safe
            set search_path = pg_catalog, pg_temp
            as 'select uuidv7()';
    else
        -- 48 bits of milliseconds, the version nibble, then the variant and random bits of a version 4 id.
        create function /*schema*/uuid7() returns uuid
            language sql volatile parallel safe
            set search_path = pg_catalog, pg_temp
            as $$
                select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
                        || '7' || substr(random_id.hex, 14))::uuid
                from (select replace(gen_random_uuid()::text, '-', '') as hex) as random_id
            $$;
    end if;
end
$uuid7$;

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

-- The log

-- `tx` stands before `seq`: defaults are evaluated in column order, so whoever has drawn a number already has its
-- transaction id. The exact cursor (take) rests on this, and on the sequence handing out one number at a time.
-- There are no CHECK constraints: accept_event checks a row, and costs less.
create table /*schema*/outbox (
    tx              xid8        not null default pg_current_xact_id(),
    seq             bigint      not null generated always as identity (sequence name /*schema*/outbox_seq cache 1),
    id              uuid        not null default /*schema*/uuid7(),
    event_type      text        not null,
    event_version   integer     not null default 1,
    occurred_at     timestamptz not null default clock_timestamp(),
    source          text        not null,
    target          text,
    content_class   text        not null default 'internal',
    channel         text        not null default 'outbox_default',
    generation      bigint      not null default 0,
    workspace_id    text,
    aggregate_kind  text,
    aggregate_id    text,
    entity_version  bigint,
    payload         jsonb       not null,
    idempotency_key text,
    trace_context   jsonb,
    caused_by       uuid,
    origin          text,
    erased_at       timestamptz,
    primary key (seq)
) partition by range (seq);
comment on column /*schema*/outbox.target is 'the one context that shall see the event; null = broadcast';
comment on column /*schema*/outbox.aggregate_id is 'the ordering key; null = no order';
comment on column /*schema*/outbox.idempotency_key is 'null = the event''s id';
comment on column /*schema*/outbox.caused_by is 'the event, or the job, whose handler published this event';
comment on column /*schema*/outbox.origin is 'the inbox that brought the event; null = born here';
comment on column /*schema*/outbox.erased_at is 'its payload is gone, for good';

-- There is none on caused_by: whoever asks looks close to the cause.
create index outbox_tx_seq on /*schema*/outbox (tx, seq);
create index outbox_id on /*schema*/outbox (id);

create trigger accept_event before insert or update on /*schema*/outbox
    for each row execute function /*schema*/accept_event();

-- One row per segment: those of the log, and those that were detached and can be attached again until they are dropped.
create table /*schema*/segment (
    name         text        primary key,
    first_seq    bigint      not null,
    last_seq     bigint      check (last_seq >= first_seq),
    made_at      timestamptz not null default clock_timestamp(),
    begun_at     timestamptz,
    closed_at    timestamptz,
    detached_at  timestamptz,
    wanted_until timestamptz,
    kept         text
);

comment on column /*schema*/segment.first_seq is '0 = it has no lower bound: the first of the log';
comment on column /*schema*/segment.last_seq is 'null = it has no upper bound: the last of the log';
comment on column /*schema*/segment.begun_at is 'when the log was seen to have reached it';
comment on column /*schema*/segment.closed_at is 'when the log was seen to be past it: everything in it was published before';
comment on column /*schema*/segment.detached_at is 'since then it is a table of its own';
comment on column /*schema*/segment.wanted_until is 'it was attached again: it stays so long';
comment on column /*schema*/segment.kept is 'why it is still there although its time is over';

-- Sixteen segments of a million events are made ahead; the last one has no upper bound, so that a publish never fails
-- because nobody made the next. There is no DEFAULT partition: it would block new segments and DETACH CONCURRENTLY.
-- Rows are written once, and never changed until they go: frozen soon, in small steps, instead of all at once when they are old.
do $segments$
declare
    size constant bigint := 1000000;
    last constant integer := 16;
    part text;
begin
    for n in 0 .. last loop
        part := case n when last then 'outbox_tail' else 'outbox_s' || n end;
        execute format(
            'create table /*schema*/%s partition of /*schema*/outbox for values from (%s) to (%s) with ('
            'autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_insert_threshold = 10000, autovacuum_freeze_min_age = 0)',
            part, case n when 0 then 'minvalue' else (n * size)::text end,
            case n when last then 'maxvalue' else ((n + 1) * size)::text end);
        insert into /*schema*/segment (name, first_seq, last_seq)
        values (part, n * size, case when n < last then (n + 1) * size - 1 end);
    end loop;
end
$segments$;

-- Subscriptions: who reads the log, and how far each reader is

create table /*schema*/subscription (
    name            text        primary key check (octet_length(name) between 1 and 63),
    kind            text        not null check (kind in ('reader', 'handler', 'job', 'relay', 'inbox')),
    context         text        not null check (octet_length(context) between 1 and 63),
    event_types     text[]      constraint subscription_event_types_check
                                check (cardinality(event_types) > 0 or kind in ('job', 'inbox')),
    ordering        text        not null default 'key' check (ordering in ('key', 'none', 'total')),
    partitions      integer     not null default 1
                                check (partitions between 1 and 1024 and partitions & (partitions - 1) = 0),
    created_at      timestamptz not null default now(),
    paused_at       timestamptz,
    lease           interval    check (lease > interval '0'),
    timeout         interval    check (timeout > interval '0'),
    concurrency     integer     check (concurrency > 0),
    key_concurrency integer     check (key_concurrency > 0),
    keep            interval    check (keep > interval '0' and keep <= interval '3650 days'),
    workspace_id    text        check (octet_length(workspace_id) between 1 and 255),
    forwards        boolean     not null default false,
    constraint subscription_total_order_is_one_line check (ordering <> 'total' or partitions = 1)
);
comment on column /*schema*/subscription.event_types is
    'null = every type; none = it reads nothing: a job that is only enqueued, an inbox';
comment on column /*schema*/subscription.ordering is 'what waits for a failed event: its key, nothing, or everything';
comment on column /*schema*/subscription.lease is 'so long a job is its worker''s own, from each renewal';
comment on column /*schema*/subscription.timeout is 'a job that runs longer is not renewed any more';
comment on column /*schema*/subscription.concurrency is 'so many of these jobs run at the same time, over all workers';
comment on column /*schema*/subscription.key_concurrency is 'so many with the same key';
comment on column /*schema*/subscription.keep is
    'of a job type: every job that is done leaves a receipt, which upkeep removes no earlier than after this time';
comment on column /*schema*/subscription.workspace_id is 'of a relay: only the events of this tenant; null = all';
comment on column /*schema*/subscription.forwards is 'of a relay: also what an inbox brought';

-- One row per reader of one partition. Its row lock is the lease; see take.
-- Few rows, updated with every batch: vacuum comes when there are some dead ones, however large the share.
create table /*schema*/cursor (
    subscription text        not null references /*schema*/subscription (name) on update cascade on delete cascade,
    generation   bigint      not null default 0,
    partition    integer     not null check (partition >= 0),
    id           bigint      not null generated always as identity,
    seq          bigint      not null,
    floor        bigint      not null,
    inflight     pg_snapshot not null,
    horizon      xid8        not null,
    owing        xid8[]      check (cardinality(owing) > 0),
    owed_after   bigint,
    mark_seq     bigint      not null,
    mark_xid     xid8        not null,
    cluster      bigint      not null,
    takes        bigint      not null default 0,
    excused      bigint      not null default 0,
    served_by    bigint,
    failures     integer     not null default 0,
    open_until   timestamptz,
    primary key (subscription, generation, partition),
    constraint cursor_owed_after_check check ((owing is null) = (owed_after is null))
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0
);
comment on column /*schema*/cursor.generation is
    '0 = whatever has no cursor of its own generation: without generations, everything';
comment on column /*schema*/cursor.seq is 'every committed event up to here is read, except those of inflight and owing';
comment on column /*schema*/cursor.floor is 'no event at or below this can belong to a transaction in inflight';
comment on column /*schema*/cursor.inflight is
    'with horizon: the transactions below horizon that had not finished in this snapshot';
comment on column /*schema*/cursor.owing is 'finished transactions whose late events are being read in pages';
comment on column /*schema*/cursor.owed_after is 'how far owing has been read';
comment on column /*schema*/cursor.mark_seq is
    'with mark_xid: whoever has an id of mark_xid or above drew only numbers above mark_seq';
comment on column /*schema*/cursor.cluster is 'log_home() of the log whose transaction ids these are';
comment on column /*schema*/cursor.takes is
    'the sequence takes_<id> at the last commit; what it counted since then was rolled back';
comment on column /*schema*/cursor.excused is 'the sequence excused_<id> at the last commit: rollbacks in good order';
comment on column /*schema*/cursor.served_by is 'the generation whose workers serve it; null = its own';
comment on column /*schema*/cursor.failures is 'in a row, where the handler has a breaker';
comment on column /*schema*/cursor.open_until is
    'the breaker is open: nothing is taken before; after it one event at a time, until one succeeds';

create unique index cursor_id on /*schema*/cursor (id);

create trigger make_counter after insert or delete on /*schema*/cursor
    for each row execute function /*schema*/make_counter();
create constraint trigger refuse_unsettled after update of takes on /*schema*/cursor
    deferrable initially deferred
    for each row when (old.takes is distinct from new.takes) execute function /*schema*/refuse_unsettled();

-- Jobs

-- It owns the sequence that delivery draws from too: whoever enqueues needs no right to it. No foreign key: whoever enqueues a job needs
-- no code for it, and it may never have been registered; and an enqueue locks no row that others lock at the same time.
-- What a claim changes stands together, because Postgres writes to the WAL what lies between the first and the last change. There are no
-- generated columns: the first of them would add 2.4 µs to the 20 µs that a claim and each other update of a row take.
create table /*schema*/job (
    id               bigint      generated always as identity primary key,
    created_at       timestamptz not null default now(),
    run_at           timestamptz not null
                         check (run_at between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z'),
    generation       bigint      not null default 0,
    seq              bigint,
    event_id         uuid        not null,
    caused_by        uuid,
    event_version    integer,
    cycle            integer     not null default 1,
    priority         smallint    not null default 0 check (priority between -100 and 100),
    closed           boolean     not null default false,
    crashes          integer     not null default 0,
    attempts         integer     not null default 0 check (attempts >= 0),
    locked_at        timestamptz,
    lease_expires_at timestamptz,
    lease_token      bigint,
    locked_by        uuid,
    status           text        not null default 'pending' check (status in ('pending', 'in_flight', 'failed', 'discarded')),
    waits_for        text        check (waits_for in ('time', 'key')),
    subscription     text        not null,
    queue            text        not null check (octet_length(queue) between 1 and 63),
    source           text,
    event_type       text,
    workspace_id     text,
    job_key          text        check (octet_length(job_key) between 1 and 512),
    unique_key       text        check (octet_length(unique_key) between 1 and 900),
    payload          jsonb,
    trace_context    jsonb,
    superseded_at    timestamptz,
    cancelled_at     timestamptz,
    progress         jsonb,
    first_failed_at  timestamptz,
    buried_at        timestamptz,
    last_error_code  text,
    last_error       text,
    last_traceback   text        check (octet_length(last_traceback) <= 16384),
    fingerprint      text,
    failure_history  jsonb,
    constraint job_lease_check check (
        (status = 'in_flight') = (lease_token is not null) and (status = 'in_flight') = (lease_expires_at is not null)),
    constraint job_waits_check check (waits_for is null or status = 'pending')
) with (
    -- A page has room for the second version of each of its rows: a claim that moves rows to other pages writes 280 bytes of WAL more
    -- per job.
    fillfactor = 45,
    -- A queue: rows come, change and go. Its indexes are what claims read, so dead rows must not gather.
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);
comment on column /*schema*/job.seq is 'the event that it was made of; null = it was enqueued';
comment on column /*schema*/job.event_id is 'the id of the job; of a job of events, that of the event';
comment on column /*schema*/job.event_type is 'the type of the event that it was made of; null = it was enqueued';
comment on column /*schema*/job.caused_by is 'the event, or the job, whose handler enqueued this job';
comment on column /*schema*/job.subscription is 'the job type, or the subscription of a job of events';
comment on column /*schema*/job.waits_for is
    'null = it may be claimed; time = run_at was in the future when it was written; key = its key had no room when a claim looked';
comment on column /*schema*/job.closed is
    'it is due and waits for transactions that keep it: an enqueue with its unique key creates another job';
comment on column /*schema*/job.superseded_at is 'it is running, and a newer job with its unique key is done';
comment on column /*schema*/job.unique_key is 'at most one pending job of a type and workspace has it';
comment on column /*schema*/job.lease_token is 'whoever settles must name it: a worker that lost its lease cannot';
comment on column /*schema*/job.cancelled_at is 'somebody wants it to stop';
comment on column /*schema*/job.payload is
    'of an enqueued job; of a job of events: what it gets instead of the event''s, edited for a replay';
comment on column /*schema*/job.last_traceback is 'where last_error was raised: the innermost frames';
comment on column /*schema*/job.fingerprint is 'errors with the same one have the same cause, as far as their texts say';
comment on column /*schema*/job.failure_history is 'null = it never failed';

-- Of these an ordinary job meets the first three: the first two while it is pending, running while it runs. A claim writes an entry
-- into each index that the running job is in, so running jobs are not in job_of_event: they are few, and owed_of finds both. Its
-- predicate is status <> 'in_flight' in other words (job_lease_check), which status = 'pending' does not imply: where statistics say that
-- the table is empty, the planner would scan the whole index for a claim.
-- The order of claims, run_at less a minute for each step of priority, is the expression of the function claim_at.
create index job_of_event on /*schema*/job (event_id) where lease_token is null;
create index job_ready on /*schema*/job (
    subscription, generation, queue, num_nonnulls(workspace_id), ((run_at at time zone 'UTC') - priority * interval '1 minute'), id)
    where status = 'pending' and waits_for is null and crashes = 0;
create index job_running on /*schema*/job (subscription, lease_expires_at) where status = 'in_flight';
create index job_scheduled on /*schema*/job (subscription, run_at, id) where waits_for = 'time';
create index job_waiting on /*schema*/job (
    subscription, coalesce(workspace_id, ''), job_key, queue, generation, ((run_at at time zone 'UTC') - priority * interval '1 minute'), id)
    where waits_for = 'key';
create index job_suspect on /*schema*/job (subscription, ((run_at at time zone 'UTC') - priority * interval '1 minute'), id)
    where status = 'pending' and waits_for is null and crashes > 0;
-- Tenants share a lane of job_ready; those that take turns have one each, by the hash of their workspace.
create index job_turn on /*schema*/job (
    subscription, generation, queue, hashtextextended(workspace_id, 0), ((run_at at time zone 'UTC') - priority * interval '1 minute'), id)
    where status = 'pending' and waits_for is null and crashes = 0 and workspace_id is not null;
-- One job of an event for each subscription; one pending or running job for events with one idempotency key.
create unique index job_event on /*schema*/job (subscription, seq) where seq is not null;
create unique index job_once on /*schema*/job (subscription, coalesce(workspace_id, ''), unique_key)
    where status in ('pending', 'in_flight') and unique_key is not null and seq is not null;
create unique index job_unique on /*schema*/job (subscription, coalesce(workspace_id, ''), unique_key)
    where status = 'pending' and unique_key is not null and seq is null and not closed;
create index job_unique_closed on /*schema*/job (subscription, coalesce(workspace_id, ''), unique_key)
    where status = 'pending' and seq is null and closed;
create index job_unique_running on /*schema*/job (subscription, coalesce(workspace_id, ''), unique_key)
    where status = 'in_flight' and unique_key is not null and seq is null;
create index job_cancelled on /*schema*/job (locked_by) where status = 'in_flight' and cancelled_at is not null;
create index job_failed on /*schema*/job (subscription, id) where status = 'failed';
create index job_fingerprint on /*schema*/job (subscription, fingerprint) where status = 'failed';
create index job_dead_since on /*schema*/job ((coalesce(buried_at, created_at))) where status in ('failed', 'discarded');

create trigger await_time before insert on /*schema*/job
    for each row when (new.run_at > clock_timestamp())
    execute function /*schema*/await_time();
create trigger await_changed_time before update of run_at on /*schema*/job
    for each row execute function /*schema*/await_time();
create trigger refuse_unbounded before insert on /*schema*/job
    for each row when (
        octet_length(concat(new.subscription, new.event_type, new.source, new.workspace_id)) > 581
        or octet_length(new.trace_context::text) > 16384
        or pg_column_size(new.payload) > 4000 or octet_length(new.payload::text) > 8192)
    execute function /*schema*/refuse_unbounded();
create trigger refuse_unbounded_change before update of payload on /*schema*/job
    for each row execute function /*schema*/refuse_unbounded();

-- Whose turn it is to claim jobs of a limited type: see hold_limits.
create table /*schema*/job_limit (
    subscription text primary key references /*schema*/subscription (name) on update cascade on delete cascade
);

create sequence /*schema*/lease_token;

-- What a claim chooses from, and what it returns: the jobs in their order; then a row that says when to look again, and what to stop.
create type /*schema*/lane as (subscription text, generation bigint, queue text, tenanted integer);
create type /*schema*/claimed as (
    head jsonb,
    delivery bigint, token bigint, subscription text, lease double precision, attempt integer, crashes integer, queue text,
    claim_at timestamp, id uuid, event_type text, event_version integer, occurred_at timestamptz, source text,
    generation bigint, workspace_id text, key text, payload text, trace_context text, event jsonb
);

-- When each schedule last fired: whoever moves it on enqueues the job, in the same transaction.
create table /*schema*/schedule (
    name        text        primary key check (octet_length(name) between 1 and 200),
    context     text        check (octet_length(context) between 1 and 63),
    job_type    text        not null,
    cron        text        not null,
    time_zone   text        not null,
    missed      text        check (missed in ('once', 'skip', 'all')),
    job         jsonb,
    updated_at  timestamptz not null default now(),
    fired_at    timestamptz not null,
    ahead       timestamptz,
    enqueued_at timestamptz,
    paused_at   timestamptz
);
comment on column /*schema*/schedule.context is 'who fires it; null: whoever registers it first from now on';
comment on column /*schema*/schedule.missed is 'as declared; null = registered by code that did not write it';
comment on column /*schema*/schedule.job is
    'the job as declared, for run_schedule: payload, version, source, queue, priority, key, workspace_id';
comment on column /*schema*/schedule.updated_at is 'since when it has these times';
comment on column /*schema*/schedule.fired_at is 'the newest time that was fired, or passed over; a new schedule begins now';
comment on column /*schema*/schedule.ahead is 'the last time that was fired while the clock was ahead: it has its job';
comment on column /*schema*/schedule.enqueued_at is 'when it last enqueued a job';
comment on column /*schema*/schedule.paused_at is 'since when it does not fire';

-- Handlers

-- The dedup ledger. Its primary key is the gate: whoever inserts the receipt runs the handler. Receipts that hold texts say whose
-- they are, so that erase finds them when the job, or the event, is gone.
-- "C": keys are bytes, and time-ordered ids then go to the right edge of the index.
-- Frozen soon, as the segments of the log.
create table /*schema*/event_handled (
    handler_name    text collate "C" not null,
    idempotency_key text collate "C" not null,
    event_id        uuid             not null,
    seq             bigint           not null,
    handled_at      timestamptz      not null default now(),
    generation      bigint           not null,
    content_class   text             not null,
    workspace_id    text,
    job_key         text,
    result          jsonb,
    failure_history jsonb,
    primary key (handler_name, idempotency_key)
) with (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.02, autovacuum_freeze_min_age = 0);
comment on column /*schema*/event_handled.handler_name is 'the subscription';
comment on column /*schema*/event_handled.idempotency_key is
    'event type:key as the producer gave it, after length:workspace: where it has one; or the event''s id';
comment on column /*schema*/event_handled.workspace_id is 'whose result and failure_history these are; null where there is neither';
comment on column /*schema*/event_handled.job_key is 'the same, of a job that was enqueued: its key';
comment on column /*schema*/event_handled.failure_history is 'of an event that was handled only after it had failed';

-- What is owed of the log: failed events that wait for their retry, those that wait behind them, dead letters. Ids come from the
-- sequence of jobs, so that an id names one thing.
create table /*schema*/delivery (
    id              bigint      primary key default nextval('/*schema*/job_id_seq'),
    subscription    text        not null,
    generation      bigint      not null default 0,
    partition       integer     not null,
    seq             bigint      not null,
    event_id        uuid        not null,
    event_type      text        not null,
    workspace_id    text,
    ordering_key    text,
    payload         jsonb,
    status          text        not null check (status in ('pending', 'failed', 'discarded')),
    head            boolean     not null,
    reached         boolean     not null,
    run_at          timestamptz not null check (run_at between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z'),
    attempts        integer     not null default 0 check (attempts >= 0),
    cycle           integer     not null default 1,
    crashes         integer     not null default 0,
    suspect         boolean     not null default false,
    created_at      timestamptz not null default now(),
    first_failed_at timestamptz,
    buried_at       timestamptz,
    last_error_code text,
    last_error      text,
    last_traceback  text        check (octet_length(last_traceback) <= 16384),
    fingerprint     text        generated always as (
        case when last_error_code is not null then /*schema*/error_fingerprint(last_error_code, last_error) end) stored,
    failure_history jsonb       not null default '[]',
    constraint delivery_pending_has_a_turn check (head or ordering_key is not null or status in ('failed', 'discarded'))
) with (
    -- A queue, as the table of jobs. Each attempt updates a row.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);
comment on column /*schema*/delivery.generation is 'the generation of the cursor that it belongs to';
comment on column /*schema*/delivery.ordering_key is
    'what keeps later events waiting: the event''s key, after length:workspace: where it has one; empty = all wait for it; null = nothing';
comment on column /*schema*/delivery.payload is 'what its handler gets instead of the event''s own: it was edited for a replay';
comment on column /*schema*/delivery.head is 'the first of its key: the only one that is retried';
comment on column /*schema*/delivery.reached is 'the cursor has come past it, so that everything before it has been read';
comment on column /*schema*/delivery.suspect is
    'was in a batch whose worker died again and again: runs alone, counted before it runs';
comment on column /*schema*/delivery.last_traceback is 'where last_error was raised: the innermost frames';
comment on column /*schema*/delivery.fingerprint is 'errors with the same one have the same cause, as far as their texts say';

create unique index delivery_event on /*schema*/delivery (subscription, seq);
create index delivery_of_event on /*schema*/delivery (event_id);
create index delivery_due on /*schema*/delivery (subscription, generation, partition, run_at)
    where status = 'pending' and head and reached;
-- Order holds within a generation.
create unique index delivery_head on /*schema*/delivery (subscription, generation, ordering_key)
    where status = 'pending' and head and ordering_key is not null;
create index delivery_line on /*schema*/delivery (subscription, generation, ordering_key, seq)
    where status = 'pending' and ordering_key is not null;
create index delivery_failed on /*schema*/delivery (subscription, id) where status = 'failed';
create index delivery_fingerprint on /*schema*/delivery (subscription, fingerprint) where status = 'failed';
-- Only dead letters are in it: what is handled well never touches it.
create index delivery_dead_since on /*schema*/delivery ((coalesce(buried_at, created_at)))
    where status in ('failed', 'discarded');

create trigger refuse_unbounded_payload before insert or update of payload on /*schema*/delivery
    for each row when (new.payload is not null) execute function /*schema*/refuse_unbounded_payload();

-- What a take returns: a first row that says what happened, with no event; then the events in their order.
create type /*schema*/taken as (
    outcome text, partition integer, batch bigint, due_in double precision, cursor bigint, delivery bigint,
    duplicates integer,
    attempt integer, seq bigint, id uuid, event_type text, event_version integer, occurred_at timestamptz, source text,
    target text, content_class text, channel text, generation bigint, workspace_id text, aggregate_kind text,
    aggregate_id text, entity_version bigint, payload text, idempotency_key text, trace_context text, origin text
);

create table /*schema*/worker (
    id             uuid        primary key,
    host           text        not null,
    pid            integer     not null,
    version        text        not null,
    schema_version integer,
    generation     bigint      not null,
    strict         boolean     not null default false,
    subscriptions  text[]      not null,
    unable         text[]      not null default '{}',
    queues         text[],
    listening      boolean     not null default false,
    stopping       boolean     not null default false,
    started_at     timestamptz not null default now(),
    seen_at        timestamptz not null default now(),
    reported_at    timestamptz,
    report         jsonb       check (length(report::text) <= 8192),
    backend        integer
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on column /*schema*/worker.schema_version is 'the newest migration that its code knows';
comment on column /*schema*/worker.unable is 'subscriptions that want event types which its code does not know';
comment on column /*schema*/worker.queues is 'null = jobs of every queue';
comment on column /*schema*/worker.reported_at is
    'later than seen_at: written by the watchdog of a worker whose event loop is held';
comment on column /*schema*/worker.report is 'what runs longest there, and its troubles; seconds count back from reported_at';
comment on column /*schema*/worker.backend is
    'the process of the server that has the session of the heartbeat; null behind a pooler';

-- Streams: relays that write to a broker, inboxes that read from one

-- How far each stream is written by its relay, or read by its inbox.
create table /*schema*/stream (
    subscription text        not null references /*schema*/subscription (name) on update cascade on delete cascade,
    name         text        not null check (octet_length(name) between 1 and 255),
    position     text        not null check (octet_length(position) between 1 and 255),
    events       bigint      not null default 0,
    moved_at     timestamptz not null default clock_timestamp(),
    primary key (subscription, name)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0
);

comment on column /*schema*/stream.position is
    'as the broker counts: everything up to here is written, or read, and committed here';
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

-- Rollups: many small facts become one event

create table /*schema*/rollup (
    name           text        primary key check (octet_length(name) between 1 and 63),
    slug           text        not null unique,
    context        text        not null check (octet_length(context) between 1 and 63),
    spec           jsonb       not null,
    scheduler      text        not null check (scheduler in ('cron', 'worker')),
    every          interval    not null,
    others         jsonb       not null default '{}',
    undo           jsonb       not null default '[]',
    trigger        text,
    installed_at   timestamptz not null default clock_timestamp(),
    uninstalled_at timestamptz,
    ticked_at      timestamptz
) with (fillfactor = 50);

comment on column /*schema*/rollup.slug is 'part of the names of its trigger and functions';
comment on column /*schema*/rollup.scheduler is 'who ticks: pg_cron, or any worker of its app';
comment on column /*schema*/rollup.others is
    'the other triggers of the source table when this one was installed, each with its fingerprint';
comment on column /*schema*/rollup.undo is
    'what install changed of the user''s: columns that were added, CHECK constraints as they were before';
comment on column /*schema*/rollup.trigger is 'its definition when it was made';
comment on column /*schema*/rollup.uninstalled_at is 'its trigger is gone; it stays for rows that wait';

-- What waits to be grouped. Only its rollup's trigger writes here, and rollup_tick. No foreign key: every producer would lock
-- the rollup's row.
create table /*schema*/rollup_pending (
    id           bigint      generated always as identity primary key,
    rollup       text        not null,
    workspace_id text,
    group_key    text,
    carried      jsonb       not null,
    staged_at    timestamptz not null default clock_timestamp(),
    processed_at timestamptz,
    event_id     uuid,
    set_aside_at timestamptz,
    error        text
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
create index rollup_pending_waiting on /*schema*/rollup_pending (rollup, id)
    where processed_at is null and set_aside_at is null;
create index rollup_pending_aside on /*schema*/rollup_pending (rollup, id)
    where processed_at is null and set_aside_at is not null;
create index rollup_pending_done on /*schema*/rollup_pending (rollup, processed_at) where processed_at is not null;

comment on column /*schema*/rollup_pending.group_key is 'null = it stays single';
comment on column /*schema*/rollup_pending.event_id is 'the event that it became, or a part of';
comment on column /*schema*/rollup_pending.set_aside_at is
    'it could not be made an event of: see error; rollup_retry lets it be tried again';

-- One row per run of rollup_tick.
create table /*schema*/rollup_log (
    id                bigint      generated always as identity primary key,
    rollup            text        not null references /*schema*/rollup (name) on update cascade on delete cascade,
    result            text        not null check (result in ('idle', 'processed', 'error')),
    run_at            timestamptz not null default clock_timestamp(),
    pending_pre       bigint      not null,
    pending_post      bigint      not null,
    groups_emitted    bigint      not null default 0,
    pieces_emitted    bigint      not null default 0,
    conflicts_skipped bigint      not null default 0,
    rows_marked       bigint      not null default 0,
    set_aside         bigint      not null default 0,
    duration_ms       double precision not null,
    error_count       integer     not null default 0,
    error_text        text
);
create index rollup_log_newest on /*schema*/rollup_log (rollup, run_at);

comment on column /*schema*/rollup_log.groups_emitted is 'rollup events';
comment on column /*schema*/rollup_log.pieces_emitted is 'single events';
comment on column /*schema*/rollup_log.rows_marked is 'staged rows that became part of an event';
comment on column /*schema*/rollup_log.conflicts_skipped is 'rows that the user''s notification table had already';

-- Takeover: an outbox or a job queue that was there before Outrider hands its rows over

create table /*schema*/takeover (
    name        text        primary key check (octet_length(name) between 1 and 200),
    phase       text        not null default 'rehearsal' check (phase in ('rehearsal', 'taken', 'finished')),
    source      text        not null,
    brought     bigint      not null default 0,
    log_start   bigint      not null,
    started_at  timestamptz not null default now(),
    cut_at      timestamptz,
    finished_at timestamptz
);
comment on table /*schema*/takeover is 'tables whose rows become events or jobs';
comment on column /*schema*/takeover.name is 'schema.table';
comment on column /*schema*/takeover.phase is
    'rehearsal: new rows are tried out, the old dispatcher has them; taken: new rows are published here';
comment on column /*schema*/takeover.source is 'the source of the events and jobs that it makes';
comment on column /*schema*/takeover.brought is 'how many rows the cut-over brought; the trigger takes the later ones';
comment on column /*schema*/takeover.log_start is 'no event of it has a position below this one';

create table /*schema*/takeover_refused (
    name   text        not null references /*schema*/takeover (name) on delete cascade,
    row_id text        not null,
    error  text        not null,
    at     timestamptz not null default now(),
    primary key (name, row_id)
);
comment on table /*schema*/takeover_refused is 'rows that could not become an event or a job; they stay owed';

-- Administration

create table /*schema*/setting (
    name       text        primary key,
    value      bigint      not null,
    entered    text,
    least      bigint      not null,
    greatest   bigint      not null,
    updated_at timestamptz not null default now(),
    constraint setting_value_check check (value between least and greatest)
);
comment on table /*schema*/setting is
    'limits that operators may change; content_class.NAME: an added content class, treated like 0 public to 3 restricted';
comment on column /*schema*/setting.entered is
    'of a rollup''s settings: what an operator wants instead of value; clamped, and if it is no number, value holds';

create constraint trigger refuse_retention after insert or update or delete on /*schema*/setting
    deferrable initially deferred
    for each row execute function /*schema*/refuse_retention();

insert into /*schema*/setting (name, value, least, greatest) values
    ('payload_max_bytes', 262144, 1024, 67108864),
    ('paused', 0, 0, 1),
    ('retention.log_days', 45, 1, 36500),
    ('retention.log_grace_days', 7, 0, 3650),
    ('retention.receipt_days', 60, 2, 73000),
    ('retention.receipt_grace_days', 7, 0, 3650),
    ('retention.dead_letter_days', 45, 1, 36500),
    ('retention.audit_days', 400, 90, 73000),
    ('segments.ahead', 16, 2, 100),
    ('segments.size', 1000000, 1000, 1000000000),
    ('segments.days', 7, 1, 3650),
    ('upkeep.lock_timeout_ms', 200, 10, 5000);

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
create index audit_of_subscription on /*schema*/audit (subscription, id) where subscription is not null;
create index audit_by_name on /*schema*/audit (by, id);
create index audit_by_role on /*schema*/audit (role, id);

-- Events that nobody shall take any more. The log itself stays as it was written.
create table /*schema*/withdrawal (
    seq          bigint      primary key,
    event_id     uuid        not null,
    withdrawn_at timestamptz not null default now(),
    withdrawn_by text        not null,
    reason       text,
    outcomes     jsonb
);
comment on column /*schema*/withdrawal.outcomes is 'of an erased event: subscriptions without receipts that had read it';

-- For operators: what is owed, of the log and of jobs, by id, by event, and dead letters by subscription. Whoever reads it sees
-- what it may see of both tables.
create view /*schema*/owed with (security_invoker = true) as
select 'event' as kind, d.id, d.subscription, d.generation, d.seq, d.event_id, d.event_type, d.status, d.run_at, d.attempts,
       d.cycle, d.workspace_id, d.payload, d.last_error_code, d.last_error, d.last_traceback, d.fingerprint, d.first_failed_at,
       d.buried_at, d.failure_history, d.created_at, null::text as job_key, null::integer as event_version, null::text as source
from /*schema*/delivery as d
union all
select 'job', j.id, j.subscription, j.generation, j.seq, j.event_id, coalesce(j.event_type, j.subscription), j.status, j.run_at,
       j.attempts, j.cycle, j.workspace_id, j.payload, j.last_error_code, j.last_error, j.last_traceback, j.fingerprint,
       j.first_failed_at, j.buried_at, coalesce(j.failure_history, '[]'), j.created_at, j.job_key, j.event_version, j.source
from /*schema*/job as j;

-- What is still to be done, by subscription: one branch for each partial index, what runs first. due_at: since when a worker should
-- have taken it; null = it waits for something else than its time.
create view /*schema*/unfinished with (security_invoker = true) as
select j.subscription, j.seq, j.status, j.run_at, j.lease_expires_at as due_at from /*schema*/job as j where j.status = 'in_flight'
union all
select d.subscription, d.seq, d.status, d.run_at, d.run_at
from /*schema*/delivery as d where d.status = 'pending' and d.head and d.reached
union all
select d.subscription, d.seq, d.status, d.run_at, null from /*schema*/delivery as d where d.status = 'pending' and not (d.head and d.reached)
union all
select j.subscription, j.seq, j.status, j.run_at, j.run_at
from /*schema*/job as j where j.status = 'pending' and j.waits_for is null and j.crashes = 0
union all
select j.subscription, j.seq, j.status, j.run_at, j.run_at
from /*schema*/job as j where j.status = 'pending' and j.waits_for is null and j.crashes > 0
union all
select j.subscription, j.seq, j.status, j.run_at, j.run_at from /*schema*/job as j where j.waits_for = 'time'
union all
select j.subscription, j.seq, j.status, j.run_at, null from /*schema*/job as j where j.waits_for = 'key';

-- What has become of an event at each subscription that wants it. An event that a subscription passed before it wanted
-- its type, or that is older than the subscription, is none of its concern, and not here. A reader and a relay leave no
-- receipts: what has occurred since it was made, and it has passed, counts as delivered. Read it by event_id or seq.
-- Views are made before functions: the filter is that of concerns, the key that of receipt_key.
create view /*schema*/event_status as
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
    select case s.kind when 'relay' then not starts_with(o.event_type, 'outrider.canary_') and (s.forwards or o.origin is null)
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
    select h.handler_name, h.event_id, h.handled_at, h.failure_history from /*schema*/event_handled as h
    where h.handler_name = s.name
      and h.idempotency_key = coalesce(
          coalesce(length(o.workspace_id) || ':' || o.workspace_id || ':', '') || o.event_type || ':'
              || o.idempotency_key, o.id::text)
      and (h.event_id = o.id or fits.addressed)
    limit 1) as h on true
left join lateral (
    select d.id, d.status, d.attempts, d.run_at, d.last_error_code, d.last_error, d.failure_history
    from /*schema*/delivery as d where d.subscription = s.name and d.seq = o.seq
    union all
    select j.id, j.status, j.attempts, j.run_at, j.last_error_code, j.last_error, j.failure_history
    from /*schema*/job as j where j.subscription = s.name and j.seq = o.seq
    limit 1) as d on true
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

-- The last hour, for the charts of the dashboard

-- One row for each minute. After an hour it is written over.
create table /*schema*/sample (
    minute   smallint         primary key check (minute between 0 and 59),
    taken_at timestamptz      not null default clock_timestamp(),
    seq      bigint           not null,
    waiting  double precision not null,
    owed     bigint           not null,
    dead     bigint           not null,
    handled  bigint           not null default 0,
    failed   bigint           not null default 0
) with (fillfactor = 50);
comment on column /*schema*/sample.seq is 'the newest position of the log';
comment on column /*schema*/sample.waiting is 'seconds that the oldest event or job has waited that a worker could take';
comment on column /*schema*/sample.owed is 'events that wait for a retry, and jobs that are pending or running';
comment on column /*schema*/sample.handled is 'events and jobs that the workers have handled since each of them started';
comment on column /*schema*/sample.failed is 'attempts that have failed there';

-- Upkeep: what goes when it is old

-- How far each task of upkeep is.
create table /*schema*/upkeep (
    task     text        primary key,
    ran_at   timestamptz not null default clock_timestamp(),
    page     bigint      not null default 0,
    oldest   timestamptz,
    next_at  timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

comment on column /*schema*/upkeep.page is 'of a task that walks over a table: where it goes on';
comment on column /*schema*/upkeep.oldest is 'the oldest row that it has met and left, in this round';
comment on column /*schema*/upkeep.next_at is 'there is nothing to do for it before';

-- What upkeep did, or would do.
create type /*schema*/upkept as (action text, subject text, number bigint, detail text);
