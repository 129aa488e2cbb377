-- Jobs in a table of their own; delivery keeps what is owed of the log.
-- breaking: stop
-- functions: 3ba63b86fc7bb17a

-- The job owns the sequence that both tables draw from, so that an id names one thing: whoever enqueues needs no right to it.
-- What a claim changes stands together, because Postgres writes to the WAL what lies between the first and the last change.
create table /*schema*/job (
    id               bigint      generated always as identity primary key,
    created_at       timestamptz not null default now(),
    run_at           timestamptz not null
                         check (run_at between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z'),
    claim_at         timestamp   generated always as ((run_at at time zone 'UTC') - priority * interval '1 minute') stored,
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
    fingerprint      text        generated always as (
        case when last_error_code is not null then /*schema*/error_fingerprint(last_error_code, last_error) end) stored,
    failure_history  jsonb,
    constraint job_lease_check check (
        (status = 'in_flight') = (lease_token is not null) and (status = 'in_flight') = (lease_expires_at is not null)),
    constraint job_waits_check check (waits_for is null or status = 'pending')
);
comment on column /*schema*/job.claim_at is 'the order of claims: run_at, a minute earlier for each step of priority';
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
comment on column /*schema*/job.payload is 'of an enqueued job; of a job of events: what it gets instead of the event''s, edited for a replay';
comment on column /*schema*/job.last_traceback is 'where last_error was raised: the innermost frames';
comment on column /*schema*/job.fingerprint is 'errors with the same one have the same cause, as far as their texts say';
comment on column /*schema*/job.failure_history is 'null = it never failed';

-- A job whose time has not come waits for it, whoever writes it: so a claim reads nothing that is for later.
create function /*schema*/await_time() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if new.status = 'pending' and new.run_at > clock_timestamp() then
        new.waits_for := 'time';
    elsif new.waits_for = 'time' then
        new.waits_for := null;
    end if;
    return new;
end
$$;
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

do $move$
declare
    rule record;
    held record;
begin
    -- What is there, and who may do what with it.
    insert into /*schema*/job (
        id, created_at, run_at, generation, seq, event_id, caused_by, event_version, cycle, priority, closed, crashes, attempts,
        locked_at, lease_expires_at, lease_token, locked_by, status, waits_for, subscription, queue, source, event_type,
        workspace_id, job_key, unique_key, payload, trace_context, superseded_at, cancelled_at, progress, first_failed_at,
        buried_at, last_error_code, last_error, last_traceback, failure_history)
    overriding system value
    select d.id, d.created_at, d.run_at, d.generation, d.seq, d.event_id, d.caused_by, d.event_version, d.cycle, d.priority,
           d.closed, d.crashes, d.attempts, d.locked_at, d.lease_expires_at, d.lease_token, d.locked_by, d.status,
           case when d.waiting and d.status = 'pending' then 'key' end, d.subscription, d.queue, d.source,
           case when d.seq is not null then d.event_type end, d.workspace_id, d.job_key, d.unique_key, d.payload,
           d.trace_context, d.superseded_at, d.cancelled_at, d.progress, d.first_failed_at, d.buried_at, d.last_error_code,
           d.last_error, d.last_traceback, nullif(d.failure_history, '[]')
    from /*schema*/delivery as d where d.queue is not null order by d.id;
    perform setval(pg_get_serial_sequence('/*schema*/job', 'id'),
                   nextval(pg_get_serial_sequence('/*schema*/delivery', 'id')));
    delete from /*schema*/delivery where queue is not null;

    for rule in
        select a.grantee::regrole as role, string_agg(distinct a.privilege_type, ', ') as privileges
        from pg_class as c cross join aclexplode(c.relacl) as a
        where c.oid = '/*schema*/delivery'::regclass and a.grantee not in (0, c.relowner) group by 1
    loop
        execute format('grant %s on /*schema*/job to %s', rule.privileges, rule.role);
    end loop;
    -- Whoever may only enqueue needs nothing of delivery any more.
    for rule in
        select a.grantee::regrole as role, a.privilege_type as privilege,
               string_agg(quote_ident(m.attname), ', ') filter (where own.attname is not null) as columns,
               string_agg(quote_ident(m.attname), ', ') as before
        from pg_attribute as m cross join aclexplode(m.attacl) as a
        left join pg_attribute as own
            on own.attrelid = '/*schema*/job'::regclass and own.attname = m.attname and own.attgenerated = ''
        where m.attrelid = '/*schema*/delivery'::regclass and not m.attisdropped and a.grantee <> 0 group by 1, 2
    loop
        if rule.columns is not null then
            execute format('grant %s (%s) on /*schema*/job to %s', rule.privilege, rule.columns, rule.role);
        end if;
        if rule.privilege = 'INSERT' then
            execute format('revoke insert (%s) on /*schema*/delivery from %s', rule.before, rule.role);
        end if;
    end loop;
    for rule in
        select distinct a.grantee::regrole as role from pg_class as c cross join aclexplode(c.relacl) as a
        where c.oid = '/*schema*/delivery'::regclass and a.privilege_type = 'INSERT' and a.grantee not in (0, c.relowner)
    loop
        execute format('grant usage on sequence %s to %s', pg_get_serial_sequence('/*schema*/job', 'id'), rule.role);
    end loop;

    for held in select c.relrowsecurity, c.relforcerowsecurity from pg_class as c where c.oid = '/*schema*/delivery'::regclass loop
        execute format('alter table /*schema*/job %s row level security, %s force row level security',
                       case when held.relrowsecurity then 'enable' else 'disable' end,
                       case when held.relforcerowsecurity then '' else 'no' end);
    end loop;
    for rule in
        select p.polname, p.polcmd, p.polpermissive, pg_get_expr(p.polqual, p.polrelid) as qual,
               pg_get_expr(p.polwithcheck, p.polrelid) as checked,
               (select string_agg(case r.role when 0 then 'public' else r.role::regrole::text end, ', ')
                from unnest(p.polroles) as r (role)) as roles
        from pg_policy as p where p.polrelid = '/*schema*/delivery'::regclass
    loop
        execute format('create policy %I on /*schema*/job as %s for %s to %s using (%s)%s', rule.polname,
                       case when rule.polpermissive then 'permissive' else 'restrictive' end,
                       case rule.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update'
                                        when 'd' then 'delete' else 'all' end,
                       rule.roles, coalesce(rule.qual, 'true'), coalesce(' with check (' || rule.checked || ')', ''));
    end loop;
end
$move$;

drop index /*schema*/job_cancelled, /*schema*/job_due, /*schema*/job_once, /*schema*/job_running, /*schema*/job_suspect,
           /*schema*/job_turn, /*schema*/job_unique, /*schema*/job_unique_running, /*schema*/job_waiting;
-- Of these an ordinary job meets the first three: ready while it is pending, running while it runs.
create index job_of_event on /*schema*/job (event_id);
create index job_ready on /*schema*/job (subscription, generation, queue, num_nonnulls(workspace_id), claim_at, id)
    where status = 'pending' and waits_for is null and crashes = 0;
create index job_running on /*schema*/job (subscription, lease_expires_at) where status = 'in_flight';
create index job_scheduled on /*schema*/job (subscription, run_at, id) where waits_for = 'time';
create index job_waiting on /*schema*/job
    (subscription, coalesce(workspace_id, ''), job_key, queue, generation, claim_at, id) where waits_for = 'key';
create index job_suspect on /*schema*/job (subscription, claim_at, id)
    where status = 'pending' and waits_for is null and crashes > 0;
-- Tenants share a lane of job_ready; those that take turns have one each, by the hash of their workspace.
create index job_turn on /*schema*/job (subscription, generation, queue, hashtextextended(workspace_id, 0), claim_at, id)
    where status = 'pending' and waits_for is null and crashes = 0 and workspace_id is not null;
-- One job of an event for each subscription; one pending or running job for events with one idempotency key.
create unique index job_event on /*schema*/job (subscription, seq) where seq is not null;
create unique index job_once on /*schema*/job (subscription, coalesce(workspace_id, ''), unique_key)
    where status in ('pending', 'in_flight') and unique_key is not null and seq is not null;
create unique index job_unique on /*schema*/job (subscription, coalesce(workspace_id, ''), unique_key)
    where status = 'pending' and unique_key is not null and seq is null and not closed;
create index job_unique_running on /*schema*/job (subscription, coalesce(workspace_id, ''), unique_key)
    where status = 'in_flight' and unique_key is not null and seq is null;
create index job_cancelled on /*schema*/job (locked_by) where status = 'in_flight' and cancelled_at is not null;
create index job_failed on /*schema*/job (subscription, id) where status = 'failed';
create index job_fingerprint on /*schema*/job (subscription, fingerprint) where status = 'failed';
create index job_dead_since on /*schema*/job ((coalesce(buried_at, created_at))) where status in ('failed', 'discarded');
-- A queue: rows come, change and go. Its indexes are what claims read, so dead rows must not gather. A page has room for the second
-- version of each of its rows: a claim that moves rows to other pages writes 1,178 bytes of WAL per job, this one 897.
alter table /*schema*/job set (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05);

-- What a claim chooses from, and what it returns: the jobs in their order; then a row that says when to look again, and what to stop.
create type /*schema*/lane as (subscription text, generation bigint, queue text, tenanted integer);
drop function if exists
    /*schema*/claim(uuid, text[], integer, bigint, text[], boolean),
    /*schema*/claim_lane(uuid, text, bigint, text, integer, timestamptz, integer),
    /*schema*/lease(tid[], uuid, timestamptz),
    /*schema*/pick_limited(bigint[], text[], bigint[], text[], smallint[], integer[], integer, timestamptz),
    /*schema*/take_turns(text[], bigint[], text[], smallint[], integer[], integer, timestamptz),
    /*schema*/tenants_due(text[], bigint[], text[], smallint[], integer, timestamptz),
    /*schema*/close_kept(text[], bigint[], text[], smallint[], integer[], timestamptz);
drop type /*schema*/claimed;
create type /*schema*/claimed as (
    head jsonb,
    delivery bigint, token bigint, subscription text, lease double precision, attempt integer, crashes integer, queue text,
    claim_at timestamp, id uuid, event_type text, event_version integer, occurred_at timestamptz, source text,
    generation bigint, workspace_id text, key text, payload text, trace_context text, event jsonb
);

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
-- What is still to be done, by subscription: one branch for each partial index, what runs first. due_at: since when a worker should have taken it;
-- null = it waits for something else than its time.
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
do $readers$
declare
    reader record;
begin
    for reader in
        select distinct a.grantee::regrole as role from pg_class as c cross join aclexplode(c.relacl) as a
        where c.oid = '/*schema*/event_status'::regclass and a.privilege_type = 'SELECT' and a.grantee not in (0, c.relowner)
    loop
        execute format('grant select on /*schema*/owed, /*schema*/unfinished to %s', reader.role);
    end loop;
end
$readers$;

-- Whoever could call it can call the new one, whose text comes below.
do $dead_letters$
declare
    callers constant text[] := array(
        select a.grantee::regrole from pg_proc as p cross join aclexplode(p.proacl) as a
        where p.oid = to_regproc('/*schema*/dead_letters') and a.grantee not in (0, p.proowner));
    caller  text;
begin
    drop function if exists /*schema*/dead_letters(text, text, text, text, timestamptz, timestamptz, text, bigint, bigint, bigint);
    create function /*schema*/dead_letters(
        p_subscription text, p_event_type text, p_error_code text, p_fingerprint text, p_since timestamptz, p_until timestamptz,
        p_workspace_id text, p_generation bigint, p_after bigint, p_limit bigint) returns setof /*schema*/owed
        language plpgsql as 'begin end';
    revoke all on function /*schema*/dead_letters from public;
    foreach caller in array callers loop
        execute format('grant execute on function /*schema*/dead_letters to %s', caller);
    end loop;
end
$dead_letters$;

-- As before, of both tables.
create or replace view /*schema*/event_status as
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
do $invoker$
begin
    -- Replacing a view forgets its options. The policies of delivery were copied above.
    if exists (select from pg_class as c where c.oid = '/*schema*/job'::regclass and c.relrowsecurity) then
        alter view /*schema*/event_status set (security_invoker = true);
    end if;
end
$invoker$;
do $own$
begin
    execute 'create or replace view /*schema*/tenant_event with (security_barrier = true) as '
            'select e.event_id, e.event_type, e.occurred_at, e.subscription, e.status, e.handled_at, e.erased_at from ('
            || rtrim(pg_get_viewdef('/*schema*/event_status'::regclass), ';')
            || ') as e where e.workspace_id = nullif(current_setting(''app.workspace_id'', true), '''')';
end
$own$;

-- What is left of delivery: events.
drop trigger refuse_unbounded on /*schema*/delivery;
drop trigger refuse_unbounded_change on /*schema*/delivery;
drop function if exists /*schema*/release(
    /*schema*/delivery, text, double precision, text, text, boolean, text);
drop function if exists /*schema*/rewrite(/*schema*/delivery);
alter table /*schema*/delivery
    alter column id drop identity,
    alter column id set default nextval('/*schema*/job_id_seq'),
    alter column seq set not null,
    drop constraint delivery_check,
    drop constraint delivery_is_event_or_job,
    drop constraint delivery_job_is_no_head,
    drop constraint delivery_lease_check,
    add constraint delivery_check check (head or ordering_key is not null or status in ('failed', 'discarded')),
    drop column queue, drop column priority, drop column job_key, drop column unique_key, drop column waiting,
    drop column event_version, drop column source, drop column trace_context, drop column locked_by, drop column locked_at,
    drop column lease_token, drop column lease_expires_at, drop column cancelled_at, drop column progress, drop column closed,
    drop column superseded_at, drop column caused_by;
drop index /*schema*/delivery_event;
create unique index delivery_event on /*schema*/delivery (subscription, seq);
comment on column /*schema*/delivery.event_id is 'the event';
comment on column /*schema*/delivery.payload is 'what its handler gets instead of the event''s own: it was edited for a replay';
create function /*schema*/refuse_unbounded_payload() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if new.payload is distinct from old.payload then
        perform /*schema*/bounded(new.payload);
    end if;
    return new;
end
$$;
create trigger refuse_unbounded_payload before insert or update of payload on /*schema*/delivery
    for each row when (new.payload is not null) execute function /*schema*/refuse_unbounded_payload();

-- The words of what users read.
alter type /*schema*/taken rename attribute conceded to duplicates;
drop function if exists /*schema*/retire(text, boolean, text, text);
