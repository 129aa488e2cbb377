-- Bounds: no producer can stop the others.
-- breaking: no
-- functions: 9e652c63579d53c0

-- Receipts that hold texts say whose they are, so that erase finds them when the job, or the event, is gone.
alter table /*schema*/event_handled
    add column workspace_id text,
    add column job_key      text;
comment on column /*schema*/event_handled.workspace_id is 'whose result and failure_history these are; null where there is neither';
comment on column /*schema*/event_handled.job_key is 'the same, of a job that was enqueued: its key';

-- Dead letters keep the last frames of the traceback.
alter table /*schema*/delivery add column last_traceback text check (octet_length(last_traceback) <= 16384);
comment on column /*schema*/delivery.last_traceback is 'where last_error was raised: the innermost frames, of a handler or a job';

-- Reports: a heartbeat carries what its worker is doing and what troubles it.
alter table /*schema*/worker
    add column report      jsonb check (length(report::text) <= 8192),
    add column reported_at timestamptz,
    add column backend     integer;
comment on column /*schema*/worker.report is 'what runs longest there, and its troubles; seconds count back from reported_at';
comment on column /*schema*/worker.reported_at is
    'later than seen_at: written by the watchdog of a worker whose event loop is held';
comment on column /*schema*/worker.backend is
    'the process of the server that has the session of the heartbeat; null behind a pooler';

-- Whose turn it is to claim jobs of a limited type: see hold_limits.
create table /*schema*/job_limit (
    subscription text primary key references /*schema*/subscription (name) on update cascade on delete cascade
);

-- What stages events for an installed rollup holds its row instead of an advisory lock, which anybody could take.
do $stages$
declare
    stages record;
begin
    for stages in
        select p.oid, regexp_replace(
                   pg_get_functiondef(p.oid),
                   E'    perform pg_advisory_xact_lock_shared\\(.*?\\);\n    if not exists \\(select (from .*? is null)\\) then\n',
                   E'    perform \\1 for key share;\n    if not found then\n') as definition
        from pg_proc as p
        where p.pronamespace = (select c.relnamespace from pg_class as c where c.oid = '/*schema*/rollup'::regclass)
          and p.proname ~ '^rollup_stage_' and p.prosrc ~ 'pg_advisory_xact_lock_shared'
          and pg_has_role(p.proowner, 'usage')  -- the others with the next install
    loop
        execute stages.definition;
    end loop;
end
$stages$;
-- A job says of which event it came.
alter table /*schema*/delivery add column caused_by uuid;
comment on column /*schema*/delivery.caused_by is 'the event, or the job, whose handler enqueued this job';
drop function if exists /*schema*/enqueue_one(
    text, jsonb, uuid, timestamptz, integer, text, text, text, text, integer, text, text, jsonb, bigint, boolean);
-- Whoever may write the columns of a job may write this one, too.
do $caused$
declare
    writer regrole;
begin
    for writer in
        select distinct a.grantee::regrole from pg_attribute as column_ cross join aclexplode(column_.attacl) as a
        where column_.attrelid = '/*schema*/delivery'::regclass and column_.attname = 'job_key' and a.privilege_type = 'INSERT'
          and a.grantee <> 0
    loop
        execute format('grant insert (caused_by) on /*schema*/delivery to %s', writer);
    end loop;
end
$caused$;
