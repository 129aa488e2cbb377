-- What systems that existed before Outrider need: see CHANGELOG, "Adopt".
-- breaking: no
-- functions: 42a0b987f9d96eec

-- Strict generations. Whoever may take may also claim: see inherit_grants.
alter table /*schema*/worker add column strict boolean not null default false;
drop function if exists
    /*schema*/claim(uuid, text[], integer, bigint, text[], boolean),
    /*schema*/lanes(text[], bigint, text[]),
    /*schema*/pick_suspect(text[], bigint, text[], boolean);

-- Content classes that can be added: allow_content_class, accept_event.
comment on table /*schema*/setting is
    'limits that operators may change; content_class.NAME: an added content class, treated like 0 public to 3 restricted';

-- Rollups: a parent, fields of the first row. rollup_parts returns more columns; rollup_faulty_groups replaces rollup_culprits.
drop function if exists /*schema*/rollup_parts(jsonb);
drop function if exists /*schema*/rollup_culprits(/*schema*/rollup, bigint[], integer[], integer);

-- Relays: an event with a channel class wakes them through notify, a function.

-- Schedules that operators list, pause and run.
alter table /*schema*/schedule
    add column missed      text check (missed in ('once', 'skip', 'all')),
    add column job         jsonb,
    add column enqueued_at timestamptz,
    add column paused_at   timestamptz;
comment on column /*schema*/schedule.missed is 'as declared; null = registered by code that did not write it';
comment on column /*schema*/schedule.job is 'the job as declared, for run_schedule: payload, version, source, queue, priority, key, workspace_id';
comment on column /*schema*/schedule.enqueued_at is 'when it last enqueued a job';
comment on column /*schema*/schedule.paused_at is 'since when it does not fire';

-- Causes: an event says which event or job it came of. The default reads a setting, because code that publishes must also work before
-- this migration. No index: whoever asks looks close to the cause.
alter table /*schema*/outbox add column caused_by uuid default nullif(current_setting('outrider.cause', true), '')::uuid;
comment on column /*schema*/outbox.caused_by is 'the event, or the job, whose handler published this event';
do $causes$
declare
    part text;
begin
    for part in
        select s.name from /*schema*/segment as s
        where s.detached_at is not null and to_regclass(format('/*schema*/%I', s.name)) is not null
    loop
        execute format('alter table /*schema*/%I add column if not exists caused_by uuid', part);
    end loop;
end
$causes$;
