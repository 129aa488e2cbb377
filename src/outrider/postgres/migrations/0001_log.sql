-- The log, who reads it, and how far each reader is.
-- breaking: yes
-- functions: edd2e2e5b453412b

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

-- `tx` stands before `seq`: defaults are evaluated in column order, so whoever has drawn a number already has its
-- transaction id. The exact cursor (take) rests on this, and on the sequence handing out one number at a time.
create table /*schema*/outbox (
    tx              xid8        not null default pg_current_xact_id(),
    seq             bigint      not null generated always as identity (sequence name /*schema*/outbox_seq cache 1),
    id              uuid        not null default /*schema*/uuid7(),
    event_type      text        not null check (octet_length(event_type) between 1 and 200),
    event_version   integer     not null default 1 check (event_version >= 1),
    -- Within what drivers can hold: a time that no reader can read would stop every reader.
    occurred_at     timestamptz not null default clock_timestamp()
                                check (occurred_at between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z'),
    source          text        not null check (octet_length(source) between 1 and 63),
    target          text        check (octet_length(target) between 1 and 63),
    content_class   text        not null default 'internal'
                                constraint outbox_content_class_known
                                check (content_class in ('public', 'internal', 'confidential', 'restricted')),
    channel         text        not null default 'outbox_default' check (octet_length(channel) between 1 and 63),
    generation      bigint      not null default 0 check (generation >= 0),
    workspace_id    text        check (octet_length(workspace_id) between 1 and 255),
    aggregate_kind  text        check (octet_length(aggregate_kind) between 1 and 200),
    aggregate_id    text        check (octet_length(aggregate_id) between 1 and 512),
    entity_version  bigint,
    payload         jsonb       not null,
    idempotency_key text        check (octet_length(idempotency_key) between 1 and 512),
    trace_context   jsonb,
    origin          text        check (octet_length(origin) between 1 and 63),
    primary key (seq)
) partition by range (seq);

comment on column /*schema*/outbox.aggregate_id is 'the ordering key; null = no order';
comment on column /*schema*/outbox.idempotency_key is 'null = the event''s id';
comment on column /*schema*/outbox.target is 'the one context that shall see the event; null = broadcast';
comment on column /*schema*/outbox.origin is 'the inbox that brought the event; null = born here';

create index outbox_tx_seq on /*schema*/outbox (tx, seq);
create index outbox_id on /*schema*/outbox (id);

-- Sixteen segments of a million events are made ahead; the last one has no upper bound, so that a publish never fails
-- because nobody made the next. There is no DEFAULT partition: it would block new segments and DETACH CONCURRENTLY.
do $segments$
begin
    for n in 0..15 loop
        execute format('create table /*schema*/outbox_s%s partition of /*schema*/outbox for values from (%s) to (%s)',
                       n, case n when 0 then 'minvalue' else (n * 1000000)::text end, (n + 1) * 1000000);
    end loop;
end
$segments$;
create table /*schema*/outbox_tail partition of /*schema*/outbox for values from (16000000) to (maxvalue);

create table /*schema*/subscription (
    name        text        primary key check (octet_length(name) between 1 and 63),
    kind        text        not null check (kind in ('reader')),
    context     text        not null check (octet_length(context) between 1 and 63),
    event_types text[]      check (cardinality(event_types) > 0),
    partitions  integer     not null default 1
                            check (partitions between 1 and 1024 and partitions & (partitions - 1) = 0),
    created_at  timestamptz not null default now()
);

comment on column /*schema*/subscription.event_types is 'null = every type';

-- One row per reader of one partition. Its row lock is the lease; see take.
create table /*schema*/cursor (
    subscription text      not null references /*schema*/subscription (name) on update cascade on delete cascade,
    generation   bigint    not null default 0,
    partition    integer   not null check (partition >= 0),
    seq          bigint    not null,
    floor        bigint    not null,
    inflight     pg_snapshot not null,
    horizon      xid8      not null,
    owing        xid8[]    check (cardinality(owing) > 0),
    owed_after   bigint,
    mark_seq     bigint    not null,
    mark_xid     xid8      not null,
    cluster      bigint    not null,
    primary key (subscription, generation, partition),
    check ((owing is null) = (owed_after is null))
) with (fillfactor = 50);

comment on column /*schema*/cursor.seq is 'every committed event up to here is read, except those of inflight and owing';
comment on column /*schema*/cursor.floor is 'no event at or below this can belong to a transaction in inflight';
comment on column /*schema*/cursor.inflight is 'with horizon: the transactions below horizon that had not finished in this snapshot';
comment on column /*schema*/cursor.owing is 'finished transactions whose late events are being read in pages';
comment on column /*schema*/cursor.owed_after is 'how far owing has been read';
comment on column /*schema*/cursor.mark_seq is 'with mark_xid: whoever has an id of mark_xid or above drew only numbers above mark_seq';
comment on column /*schema*/cursor.cluster is 'the system identifier of the cluster whose transaction ids these are';

create table /*schema*/setting (
    name       text        primary key,
    value      bigint      not null,
    least      bigint      not null,
    greatest   bigint      not null,
    updated_at timestamptz not null default now(),
    check (value between least and greatest)
);

insert into /*schema*/setting (name, value, least, greatest) values ('payload_max_bytes', 262144, 1024, 67108864);
