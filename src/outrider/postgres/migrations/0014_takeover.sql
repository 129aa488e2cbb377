-- Takeover: an outbox or a job queue that was there before Outrider hands its rows over.
-- breaking: no
-- functions: c35150f557e8b53a

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
