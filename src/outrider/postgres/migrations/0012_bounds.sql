-- Bounds: no producer can stop the others.
-- breaking: no
-- functions: 926914112001a3f0

-- Receipts that hold texts say whose they are, so that erase finds them when the job, or the event, is gone.
alter table /*schema*/event_handled
    add column workspace_id text,
    add column job_key      text;
comment on column /*schema*/event_handled.workspace_id is 'whose result and failure_history these are; null where there is neither';
comment on column /*schema*/event_handled.job_key is 'the same, of a job that was enqueued: its key';

-- Jobs that are done leave a receipt where it is needed: see settle_done.
alter table /*schema*/subscription add column keep interval check (keep > interval '0' and keep <= interval '3650 days');
comment on column /*schema*/subscription.keep is
    'of a job type: every job that is done leaves a receipt, which upkeep removes no earlier than after this time';
drop function if exists /*schema*/register_job(text, interval, interval, integer, integer);
drop function if exists /*schema*/settle_done(bigint[], bigint[], jsonb[]);

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

-- Payloads and trace contexts: their length as text, which is how every reader gets them.
--
-- jsonb keeps 1e131071 in 16 bytes and prints 131,072 digits. So a payload may have 128 MiB as text (twice the largest payload
-- limit), a number 8,192 digits, and beyond 8 KiB the text may be at most 32 times as long as what is stored: lists of the longest
-- floats reach 20. Readers rely on the last to bound a batch by what is stored of it (take). Raises, so that the writer reads why.
create function /*schema*/bounded(p_payload jsonb) returns boolean
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    stored constant bigint := pg_column_size(p_payload #> '{}');  -- a copy that is not compressed
    said   text;
    bytes  bytea;
begin
    begin
        said := p_payload::text;
    exception when program_limit_exceeded then
        said := null;
    end;
    if said is null or octet_length(said) > 134217728 then
        raise 'the payload has % bytes as text, the limit is 134217728', coalesce(octet_length(said)::text, 'more than 1073741823')
            using errcode = 'check_violation', hint = 'Keep large content elsewhere and publish a reference.';
    end if;
    if octet_length(said) <= 8192 then
        return true;
    end if;
    -- A number of more than 8,192 digits fills at least one of these windows; so does a long text of digits.
    bytes := convert_to(said, getdatabaseencoding());
    for place in 1 .. octet_length(bytes) by 7600 loop
        if rtrim(substr(bytes, place, 512), '0123456789.'::bytea) = '' then
            if exists (select from jsonb_path_query(p_payload, 'strict $.** ? (@.type() == "number")') as number
                       where octet_length(translate(number::text, '-.', '')) > 8192) then
                raise 'a number of the payload has more than 8192 digits'
                    using errcode = 'check_violation', hint = 'Write it as a string.';
            end if;
            exit;
        end if;
    end loop;
    if octet_length(said) > 32 * stored then
        raise 'the payload is stored in % bytes and has % as text: numbers with an exponent are written in full', stored,
            octet_length(said) using errcode = 'check_violation', hint = 'Write such numbers as strings.';
    end if;
    return true;
end
$$;
comment on function /*schema*/bounded(jsonb) is 'of the constraints on payloads: true, or an error that says what is too long';

-- NOT VALID: what is there is not read, and stays; as_text reads it. Short expressions: Postgres reads them anew for each insert.
alter table /*schema*/outbox
    add constraint outbox_payload_bounded check (
        pg_column_size(payload) <= 4000 and octet_length(payload::text) <= 8192 or /*schema*/bounded(payload)) not valid,
    add constraint outbox_trace_context_bounded check (octet_length(trace_context::text) <= 16384) not valid;
do $segments$
declare
    part text;
begin
    if not exists (select from /*schema*/outbox)
       and not exists (select from /*schema*/segment as s where s.detached_at is not null) then
        alter table /*schema*/outbox validate constraint outbox_payload_bounded,
                                     validate constraint outbox_trace_context_bounded;
    end if;
    for part in
        select s.name from /*schema*/segment as s
        where s.detached_at is not null and to_regclass(format('/*schema*/%I', s.name)) is not null
    loop
        execute format(
            'alter table /*schema*/%I add constraint outbox_payload_bounded check (%s) not valid, '
            'add constraint outbox_trace_context_bounded check (%s) not valid', part,
            'pg_column_size(payload) <= 4000 and octet_length(payload::text) <= 8192 or /*schema*/bounded(payload)',
            'octet_length(trace_context::text) <= 16384');
    end loop;
end
$segments$;

-- No constraint: Postgres checks those of the whole row at each update, so that what is there could be neither claimed nor buried.
-- Only what changes is looked at.
create function /*schema*/refuse_unbounded() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if (tg_op = 'INSERT' or (new.source, new.workspace_id) is distinct from (old.source, old.workspace_id))
       and octet_length(concat(new.subscription, new.event_type, new.source, new.workspace_id)) > 581 then
        raise 'its subscription, type, source and workspace have more than 581 bytes' using errcode = 'check_violation';
    end if;
    if new.trace_context is distinct from old.trace_context
       and octet_length(new.trace_context::text) > 16384 then
        raise 'the trace context has more than 16384 bytes as text' using errcode = 'check_violation';
    end if;
    if new.payload is distinct from old.payload then
        perform /*schema*/bounded(new.payload);
    end if;
    return new;
end
$$;
create trigger refuse_unbounded before insert on /*schema*/delivery
    for each row when (
        octet_length(concat(new.subscription, new.event_type, new.source, new.workspace_id)) > 581
        or octet_length(new.trace_context::text) > 16384
        or pg_column_size(new.payload) > 4000 or octet_length(new.payload::text) > 8192)
    execute function /*schema*/refuse_unbounded();
-- An enqueue that replaces a pending job, a replay with another payload.
create trigger refuse_unbounded_change before update of payload on /*schema*/delivery
    for each row execute function /*schema*/refuse_unbounded();

-- Python's publish notifies in its own statement, which costs less than the trigger with its table of the rows. The setting
-- outrider.notified says in which statement that was. A trigger of that statement that publishes is a case for the trigger.
create function /*schema*/notify_inserted() returns trigger language plpgsql as 'begin return null; end';
create trigger notify_inserted after insert on /*schema*/outbox
    referencing new table as inserted for each statement
    when (current_setting('outrider.notified', true) is distinct from statement_timestamp()::text or pg_trigger_depth() > 0)
    execute function /*schema*/notify_inserted();
drop trigger poke on /*schema*/outbox;
drop function /*schema*/poke();
