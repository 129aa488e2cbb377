-- Rollups: many small facts become one event.
-- breaking: no
-- functions: 32ec7c0a26a94a5d

alter table /*schema*/setting add column entered text;

comment on column /*schema*/setting.entered is
    'of a rollup''s settings: what an operator wants instead of value; clamped, and if it is no number, value holds';

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
comment on column /*schema*/rollup.others is 'the other triggers of the source table when this one was installed, each with its fingerprint';
comment on column /*schema*/rollup.undo is 'what install changed of the user''s: columns that were added, CHECK constraints as they were before';
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
comment on column /*schema*/rollup_pending.set_aside_at is 'it could not be made an event of: see error; rollup_retry lets it be tried again';

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
