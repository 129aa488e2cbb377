CREATE SCHEMA outrider;

CREATE TYPE outrider.claimed AS (
	head jsonb,
	delivery bigint,
	token bigint,
	subscription text,
	lease double precision,
	attempt integer,
	crashes integer,
	queue text,
	claim_at timestamp without time zone,
	id uuid,
	event_type text,
	event_version integer,
	occurred_at timestamp with time zone,
	source text,
	generation bigint,
	workspace_id text,
	key text,
	payload text,
	trace_context text,
	event jsonb
);

CREATE TYPE outrider.lane AS (
	subscription text,
	generation bigint,
	queue text,
	tenanted integer
);

CREATE TYPE outrider.taken AS (
	outcome text,
	partition integer,
	batch bigint,
	due_in double precision,
	cursor bigint,
	delivery bigint,
	duplicates integer,
	attempt integer,
	seq bigint,
	id uuid,
	event_type text,
	event_version integer,
	occurred_at timestamp with time zone,
	source text,
	target text,
	content_class text,
	channel text,
	generation bigint,
	workspace_id text,
	aggregate_kind text,
	aggregate_id text,
	entity_version bigint,
	payload text,
	idempotency_key text,
	trace_context text,
	origin text
);

CREATE TYPE outrider.upkept AS (
	action text,
	subject text,
	number bigint,
	detail text
);

CREATE FUNCTION outrider.accept_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    broken text := case
        when octet_length(new.aggregate_id) not between 1 and 512 then 'outbox_aggregate_id_check'
        when octet_length(new.aggregate_kind) not between 1 and 200 then 'outbox_aggregate_kind_check'
        when octet_length(new.channel) not between 1 and 63 then 'outbox_channel_check'
        -- In this order: only an added class is looked up, by a function, because a subquery here would slow down every publish.
        when new.content_class not in ('public', 'internal', 'confidential', 'restricted')
             and "outrider".setting_value('content_class.' || new.content_class) is null then 'outbox_content_class_known'
        when octet_length(new.event_type) not between 1 and 200 then 'outbox_event_type_check'
        when new.event_version < 1 then 'outbox_event_version_check'
        when new.generation < 0 then 'outbox_generation_check'
        when octet_length(new.idempotency_key) not between 1 and 512 then 'outbox_idempotency_key_check'
        -- Within what drivers can hold: a time that no reader can read would stop every reader.
        when new.occurred_at not between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z' then 'outbox_occurred_at_check'
        when octet_length(new.origin) not between 1 and 63 then 'outbox_origin_check'
        when not (pg_column_size(new.payload) <= 4000 and octet_length(new.payload::text) <= 8192
                  or "outrider".bounded(new.payload)) then 'outbox_payload_bounded'
        when octet_length(new.source) not between 1 and 63 then 'outbox_source_check'
        when octet_length(new.target) not between 1 and 63 then 'outbox_target_check'
        when octet_length(new.trace_context::text) > 16384 then 'outbox_trace_context_bounded'
        when octet_length(new.workspace_id) not between 1 and 255 then 'outbox_workspace_id_check'
    end;
    told boolean;
begin
    if broken is not null then
        raise check_violation using
            message = format('new row for relation "%s" violates check constraint "%s"', tg_table_name, broken),
            schema = tg_table_schema, table = tg_table_name, constraint = broken;
    end if;
    if tg_op = 'INSERT' and (current_setting('outrider.notified', true) is distinct from statement_timestamp()::text
                             or pg_trigger_depth() > 1) then
        told := "outrider".notify(new.channel, new.event_type) is not null;  -- PERFORM would start a query
    end if;
    return new;
end
$$;

CREATE FUNCTION outrider.admit(p_names text[]) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    held boolean;
begin
    with recursive waiting as (
        select first.* from unnest(p_names) as n (name)
        cross join lateral (
            select j.subscription, coalesce(j.workspace_id, '') as tenant, j.job_key, j.queue, j.generation
            from "outrider".job as j
            where j.subscription = n.name and j.waits_for = 'key'
            order by coalesce(j.workspace_id, ''), j.job_key, j.queue, j.generation limit 1) as first
        union all
        select next.* from waiting
        cross join lateral (
            select j.subscription, coalesce(j.workspace_id, '') as tenant, j.job_key, j.queue, j.generation
            from "outrider".job as j
            where j.subscription = waiting.subscription and j.waits_for = 'key'
              and (coalesce(j.workspace_id, ''), j.job_key, j.queue, j.generation)
                  > (waiting.tenant, waiting.job_key, waiting.queue, waiting.generation)
            order by coalesce(j.workspace_id, ''), j.job_key, j.queue, j.generation limit 1) as next
    ),
    running as materialized (
        select j.subscription, coalesce(j.workspace_id, '') as tenant, j.job_key, count(*) as jobs
        from "outrider".job as j
        where j.subscription = any (p_names) and j.status = 'in_flight'
        group by 1, 2, 3
    ),
    free as materialized (
        select waiting.*, coalesce(s.key_concurrency - coalesce(running.jobs, 0), 1000) as room
        from waiting join "outrider".subscription as s on s.name = waiting.subscription
        left join running on running.subscription = waiting.subscription and running.tenant = waiting.tenant
                         and running.job_key = waiting.job_key
        where (s.key_concurrency > coalesce(running.jobs, 0)) is not false
          and (s.concurrency > (select sum(r.jobs) from running as r where r.subscription = s.name)) is not false
    ),
    first as materialized (
        select picked.place from free
        left join lateral (
            select j.ctid as place from "outrider".job as j
            where j.subscription = free.subscription and coalesce(j.workspace_id, '') = free.tenant
              and j.job_key = free.job_key and j.queue = free.queue and j.generation = free.generation
              and j.waits_for = 'key'
            order by "outrider".claim_at(j), j.id limit free.room for no key update skip locked) as picked on true
    ),
    admitted as (
        update "outrider".job as j set waits_for = null from first where j.ctid = first.place
    )
    select coalesce(bool_or(first.place is null), false) into held from first;
    return held;
end
$$;

CREATE FUNCTION outrider.admit_scheduled(p_names text[], p_moment timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    next_at  timestamptz;
    admitted bigint;
begin
    next_at := (
        select min(next.run_at) from unnest(p_names) as n (name)
        cross join lateral (
            select j.run_at from "outrider".job as j
            where j.subscription = n.name and j.waits_for = 'time' order by j.run_at limit 1) as next);
    if (next_at <= p_moment) is not true then
        return next_at;
    end if;
    with due as materialized (
        select picked.place from unnest(p_names) as n (name)
        cross join lateral (
            select j.ctid as place from "outrider".job as j
            where j.subscription = n.name and j.waits_for = 'time' and j.run_at <= p_moment
            order by j.run_at, j.id limit 1000 for no key update skip locked) as picked
    )
    update "outrider".job as j set waits_for = null from due where j.ctid = due.place;
    get diagnostics admitted = row_count;
    next_at := (
        select min(next.run_at) from unnest(p_names) as n (name)
        cross join lateral (
            select j.run_at from "outrider".job as j
            where j.subscription = n.name and j.waits_for = 'time' order by j.run_at limit 1) as next);
    return case when (next_at <= p_moment) is not true then next_at
                when admitted > 0 then p_moment
                else p_moment + interval '1 second' end;
end
$$;

CREATE FUNCTION outrider.allow_content_class(p_name text, p_like text DEFAULT 'restricted'::text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    four  text[] := '{public,internal,confidential,restricted}';
    level bigint := array_position(four, p_like) - 1;
begin
    if level is null then
        raise 'a content class is treated like one of %, not like %', array_to_string(four, ', '), quote_nullable(left(p_like, 100))
            using errcode = 'OR010';
    end if;
    if p_name is null or p_name !~ '^[a-z][a-z0-9_]{0,62}$' or p_name = any (four) then
        raise 'a new content class is a lower-case word of at most 63 letters, digits and _, and none of %; not %',
            array_to_string(four, ', '), quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    insert into "outrider".setting (name, value, least, greatest) values ('content_class.' || p_name, level, 0, 3)
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform "outrider".note('allow_content_class', p_by, p_reason, null, null,
                           jsonb_build_object('content_class', p_name, 'like', p_like));
    return true;
end
$_$;

CREATE FUNCTION outrider.as_long_text(p_value jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    said text;
begin
    said := p_value::text;
    return case when octet_length(said) > 134217728 then '' else said end;
exception when program_limit_exceeded then
    return '';
end
$$;

CREATE FUNCTION outrider.as_pretty_text(p_value jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    said text;
begin
    said := jsonb_pretty(p_value);
    return case when octet_length(said) > 134217728 then '' else said end;
exception when program_limit_exceeded then
    return '';
end
$$;

CREATE FUNCTION outrider.as_text(p_value jsonb) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE WHEN ((pg_column_size(p_value) > 4000) OR (pg_column_compression(p_value) IS NOT NULL)) THEN outrider.as_long_text(p_value) ELSE (p_value)::text END;

CREATE FUNCTION outrider.attach_part(p_name text, p_first bigint, p_last bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    execute format('alter table "outrider".outbox attach partition "outrider".%I for values from (%s) to (%s)', p_name,
                   case p_first when 0 then 'minvalue' else p_first::text end, coalesce((p_last + 1)::text, 'maxvalue'));
    execute format('comment on table "outrider".%I is null', p_name);
    insert into "outrider".segment as s (name, first_seq, last_seq) values (p_name, p_first, p_last)
    on conflict (name) do update set first_seq = p_first, last_seq = p_last, detached_at = null;
end
$$;

CREATE FUNCTION outrider.attach_segment(p_name text, p_days integer DEFAULT 7, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS SETOF outrider.upkept
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '5s'
    AS $$
declare
    this    "outrider".segment;
    foreign_events boolean;
begin
    perform "outrider".sees_all(true);
    if (p_days between 1 and 3650) is not true then
        raise 'a segment can be attached again for 1 to 3650 days, not for %', p_days using errcode = 'OR009';
    end if;
    insert into "outrider".upkeep (task) values ('lock') on conflict do nothing;
    perform from "outrider".upkeep as u where u.task = 'lock' for update;
    perform "outrider".note_segments();
    select s.* into this from "outrider".segment as s where s.name = p_name for update;
    if this.detached_at is null then
        raise 'there is no detached segment %', quote_nullable(p_name)
            using errcode = 'OR009', hint = 'To list them: outrider upkeep segments';
    end if;
    -- A cursor could mistake them for late events of a transaction here with the same id.
    execute format('select exists (select from "outrider".%I as o where o.tx >= pg_snapshot_xmax(pg_current_snapshot()))', p_name)
    into foreign_events;
    if foreign_events then
        raise 'the segment % holds events of another cluster, whose transactions this one has not reached', quote_nullable(p_name)
            using errcode = 'OR009', hint = 'It can still be read as a table.';
    end if;
    perform "outrider".attach_part(this.name, this.first_seq, this.last_seq);
    update "outrider".segment as s set wanted_until = clock_timestamp() + make_interval(days => p_days), kept = null
    where s.name = p_name;
    insert into "outrider".audit (by, action, details)
    values ("outrider".signed(p_by), 'attach_segment', jsonb_strip_nulls(
        to_jsonb(this) || jsonb_build_object('reason', left(p_reason, 2000), 'days', p_days)));
    return next ('attached', this.name, this.last_seq, format('%s to %s', this.first_seq, this.last_seq))::"outrider".upkept;
end
$$;

CREATE FUNCTION outrider.await_time() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if new.status = 'pending' and new.run_at > clock_timestamp() then
        new.waits_for := 'time';
    elsif new.waits_for = 'time' then
        new.waits_for := null;
    end if;
    return new;
end
$$;

CREATE FUNCTION outrider.batch_bytes() RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN 4194304;

CREATE FUNCTION outrider.bounded(p_payload jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
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
$_$;

CREATE FUNCTION outrider.bury(p_delivery bigint, p_code text, p_message text, p_worker text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    buried "outrider".delivery;
begin
    update "outrider".delivery as d
    set status = 'failed', head = false, suspect = false, last_error_code = p_code, last_error = p_message, last_traceback = null,
        buried_at = now(), first_failed_at = coalesce(d.first_failed_at, now()),
        failure_history = d.failure_history || "outrider".failure(d.cycle, d.attempts, p_code, p_message, p_worker)
    where d.id = p_delivery and d.status = 'pending'
    returning d.* into buried;
    perform "outrider".promote(buried.subscription, buried.generation, array[buried.ordering_key]);
end
$$;

CREATE FUNCTION outrider.canary_begin(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $_$
begin
    perform "outrider".sees_all(true);
    if p_name !~ '^outrider[.]canary_[0-9a-f]{8}$' then
        raise 'a canary is named outrider.canary_ and 8 hexadecimal digits, not %', p_name using errcode = 'OR001';
    end if;
    if (select count(*) from "outrider".subscription as s where s.name ~ '^outrider[.]canary_[0-9a-f]{8}$') >= 100 then
        raise 'there are 100 canaries already' using errcode = 'OR001', hint = 'Upkeep removes those that are 10 minutes old.';
    end if;
    perform "outrider".register(p_name, 'handler', 'outrider', array[p_name]);
end
$_$;

CREATE FUNCTION outrider.canary_end(p_name text, p_event uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '10s'
    AS $_$
begin
    perform "outrider".sees_all(true);
    if p_name !~ '^outrider[.]canary_[0-9a-f]{8}$' then
        raise '% is no canary', p_name using errcode = 'OR001';
    end if;
    delete from "outrider".subscription as s where s.name = p_name;
    delete from "outrider".delivery as d where d.subscription = p_name;
    delete from "outrider".event_handled as h where h.handler_name = p_name;
    delete from "outrider".outbox as o where o.id = p_event and o.event_type = p_name;
end
$_$;

CREATE FUNCTION outrider.canary_send(p_name text, p_generation bigint) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
begin
    perform "outrider".sees_all(true);
    if not exists (select from "outrider".subscription as s where s.name = p_name and p_name like 'outrider.canary\_%') then
        raise 'there is no canary %', p_name using errcode = 'OR001';
    end if;
    perform set_config('outrider.generation', p_generation::text, true), set_config('app.workspace_id', '', true);
    return "outrider".publish(p_name, '{}', source => 'outrider', target => 'outrider');
end
$$;

CREATE FUNCTION outrider.cancel(p_job_id uuid, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text, p_subscription text DEFAULT NULL::text) RETURNS TABLE(subscription text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET lock_timeout TO '10s'
    AS $$
#variable_conflict use_column
declare
    job  "outrider".job;
    seen boolean := false;
begin
    perform "outrider".sees_all(true);
    for job in
        select d.* from "outrider".job as d
        where d.id = any ("outrider".owed_of(p_job_id)) and d.subscription = coalesce(p_subscription, d.subscription)
        order by d.id for update
    loop
        seen := true;
        subscription := job.subscription;
        outcome := "outrider".cancel_job(job, p_by, p_reason);
        if job.status <> 'discarded' then
            perform "outrider".note('cancel', p_by, p_reason, job.subscription, p_job_id,
                                   jsonb_build_object('status', job.status));
        end if;
        return next;
    end loop;
    if not seen then
        return query select g.* from "outrider".gone_job(p_job_id, p_subscription) as g;
    end if;
end
$$;

CREATE TABLE outrider.job (
    id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    run_at timestamp with time zone NOT NULL,
    generation bigint DEFAULT 0 NOT NULL,
    seq bigint,
    event_id uuid NOT NULL,
    caused_by uuid,
    event_version integer,
    cycle integer DEFAULT 1 NOT NULL,
    priority smallint DEFAULT 0 NOT NULL,
    closed boolean DEFAULT false NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    locked_at timestamp with time zone,
    lease_expires_at timestamp with time zone,
    lease_token bigint,
    locked_by uuid,
    status text DEFAULT 'pending'::text NOT NULL,
    waits_for text,
    subscription text NOT NULL,
    queue text NOT NULL,
    source text,
    event_type text,
    workspace_id text,
    job_key text,
    unique_key text,
    payload jsonb,
    trace_context jsonb,
    superseded_at timestamp with time zone,
    cancelled_at timestamp with time zone,
    progress jsonb,
    first_failed_at timestamp with time zone,
    buried_at timestamp with time zone,
    last_error_code text,
    last_error text,
    last_traceback text,
    fingerprint text,
    failure_history jsonb,
    CONSTRAINT job_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT job_job_key_check CHECK (((octet_length(job_key) >= 1) AND (octet_length(job_key) <= 512))),
    CONSTRAINT job_last_traceback_check CHECK ((octet_length(last_traceback) <= 16384)),
    CONSTRAINT job_lease_check CHECK ((((status = 'in_flight'::text) = (lease_token IS NOT NULL)) AND ((status = 'in_flight'::text) = (lease_expires_at IS NOT NULL)))),
    CONSTRAINT job_priority_check CHECK (((priority >= '-100'::integer) AND (priority <= 100))),
    CONSTRAINT job_queue_check CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 63))),
    CONSTRAINT job_run_at_check CHECK (((run_at >= '0001-01-02 00:00:00+00'::timestamp with time zone) AND (run_at <= '9999-12-30 23:59:59.999999+00'::timestamp with time zone))),
    CONSTRAINT job_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'in_flight'::text, 'failed'::text, 'discarded'::text]))),
    CONSTRAINT job_unique_key_check CHECK (((octet_length(unique_key) >= 1) AND (octet_length(unique_key) <= 900))),
    CONSTRAINT job_waits_check CHECK (((waits_for IS NULL) OR (status = 'pending'::text))),
    CONSTRAINT job_waits_for_check CHECK ((waits_for = ANY (ARRAY['time'::text, 'key'::text])))
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.05');

COMMENT ON COLUMN outrider.job.seq IS 'the event that it was made of; null = it was enqueued';

COMMENT ON COLUMN outrider.job.event_id IS 'the id of the job; of a job of events, that of the event';

COMMENT ON COLUMN outrider.job.caused_by IS 'the event, or the job, whose handler enqueued this job';

COMMENT ON COLUMN outrider.job.closed IS 'it is due and waits for transactions that keep it: an enqueue with its unique key creates another job';

COMMENT ON COLUMN outrider.job.lease_token IS 'whoever settles must name it: a worker that lost its lease cannot';

COMMENT ON COLUMN outrider.job.waits_for IS 'null = it may be claimed; time = run_at was in the future when it was written; key = its key had no room when a claim looked';

COMMENT ON COLUMN outrider.job.subscription IS 'the job type, or the subscription of a job of events';

COMMENT ON COLUMN outrider.job.event_type IS 'the type of the event that it was made of; null = it was enqueued';

COMMENT ON COLUMN outrider.job.unique_key IS 'at most one pending job of a type and workspace has it';

COMMENT ON COLUMN outrider.job.payload IS 'of an enqueued job; of a job of events: what it gets instead of the event''s, edited for a replay';

COMMENT ON COLUMN outrider.job.superseded_at IS 'it is running, and a newer job with its unique key is done';

COMMENT ON COLUMN outrider.job.cancelled_at IS 'somebody wants it to stop';

COMMENT ON COLUMN outrider.job.last_traceback IS 'where last_error was raised: the innermost frames';

COMMENT ON COLUMN outrider.job.fingerprint IS 'errors with the same one have the same cause, as far as their texts say';

COMMENT ON COLUMN outrider.job.failure_history IS 'null = it never failed';

CREATE FUNCTION outrider.cancel_job(p_job outrider.job, p_by text, p_reason text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    why constant text := left(p_reason, 2000);
begin
    if p_job.status = 'in_flight' then
        update "outrider".job as d set cancelled_at = coalesce(d.cancelled_at, now()) where d.id = p_job.id;
        perform "outrider".notify("outrider".generation_channel(p_job.generation), p_job.subscription);
        return 'cancelling';
    end if;
    if p_job.status in ('pending', 'failed') then
        update "outrider".job as d
        set status = 'discarded', waits_for = null, last_error_code = 'cancelled',
            last_error = coalesce(why, 'it was cancelled before it ran'), fingerprint = null, last_traceback = null,
            failure_history = coalesce(d.failure_history, '[]') || jsonb_strip_nulls(jsonb_build_object(
                'cycle', d.cycle, 'cancelled_at', clock_timestamp(), 'by', "outrider".signed(p_by), 'reason', why))
        where d.id = p_job.id;
    end if;
    return 'cancelled';
end
$$;

CREATE FUNCTION outrider.change_jobs(p_action text, p_jobs bigint[], p_states text[], p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text, p_which jsonb DEFAULT '{}'::jsonb, OUT changed integer, OUT stopping integer, OUT skipped integer, OUT held bigint[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    job    "outrider".job;
    locked bigint[] := '{}';
    acted  bigint[] := '{}';
    wanted bigint[] := '{}';
begin
    perform "outrider".sees_all(true);
    if p_action not in ('cancel', 'run_now', 'retry') then
        raise 'jobs can be changed by cancel, run_now and retry, not by %', quote_nullable(left(p_action, 100)) using errcode = 'OR010';
    end if;
    changed := 0;
    stopping := 0;
    for job in
        select d.* from "outrider".job as d where d.id = any (p_jobs) order by d.id for update skip locked
    loop
        locked := locked || job.id;
        continue when (case job.status when 'in_flight' then 'running' when 'discarded' then 'cancelled' else job.status end
                       = any (p_states)) is not true or job.status = 'discarded';
        if p_action = 'cancel' then
            acted := acted || job.id;
            if "outrider".cancel_job(job, p_by, p_reason) = 'cancelled' then
                changed := changed + 1;
            else
                stopping := stopping + 1;
            end if;
        elsif p_action = 'run_now' and job.status = 'pending' and job.run_at > clock_timestamp() then
            perform "outrider".make_due(job);
            acted := acted || job.id;
            changed := changed + 1;
        elsif p_action = 'retry' and job.status = 'failed' then
            wanted := wanted || job.id;
        end if;
    end loop;
    if wanted <> '{}' then
        changed := (select count(*) from "outrider".replay(wanted, p_by, p_reason => p_reason) as r where r.outcome = 'replayed');
    elsif acted <> '{}' then
        -- Name the type, or the job, if it is only one.
        perform "outrider".note(
            p_action, p_by, p_reason, case when min(d.subscription) = max(d.subscription) then min(d.subscription) end,
            case when count(*) = 1 then min(d.event_id::text) end::uuid,
            jsonb_strip_nulls(jsonb_build_object(
                'jobs', count(*), 'stopping', nullif(stopping, 0), 'types', (array_agg(distinct d.subscription))[:20],
                'ids', (array_agg(d.event_id order by d.id))[:20],
                'which', case when length(p_which::text) <= 2000 then p_which else to_jsonb(left(p_which::text, 2000)) end)))
        from "outrider".job as d where d.id = any (acted);
    end if;
    held := array(select d.id from "outrider".job as d where d.id = any (p_jobs) and d.id <> all (locked) order by d.id);
    skipped := cardinality(p_jobs) - changed - stopping - cardinality(held);
end
$$;

CREATE FUNCTION outrider.claim(p_worker uuid, p_names text[], p_limit integer, p_generation bigint DEFAULT 0, p_queues text[] DEFAULT NULL::text[], p_suspect boolean DEFAULT true, p_strict boolean DEFAULT false) RETURNS SETOF outrider.claimed
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    last    "outrider".claimed;
    reaped  integer;
    names   text[];
    limited boolean;
    locked  boolean := false;
    moment  timestamptz;
    next_at timestamptz;
    found   record;
    limits  record;
    places  tid[] := '{}';
    cut     boolean := false;
    taken   integer := 0;
    due_in  double precision;
    looked  double precision;
    until   timestamp;
begin
    perform "outrider".sees_all();
    reaped := "outrider".reap(p_names);
    last.head := jsonb_build_object('stop', array(
        select j.id from "outrider".job as j
        where j.locked_by = p_worker and j.status = 'in_flight' and j.cancelled_at is not null));
    if p_limit <= 0 then
        return next last;
        return;
    end if;
    select array_agg(s.name order by s.name), bool_or(s.concurrency is not null or s.key_concurrency is not null)
    into names, limited
    from "outrider".subscription as s
    where s.name = any (p_names) and s.paused_at is null
      and not exists (select from "outrider".setting as p where p.name = 'paused' and p.value <> 0);
    -- A type whose limits were removed may have jobs that still wait for their key.
    limited := limited or exists (select from "outrider".job as j where j.subscription = any (names) and j.waits_for = 'key');
    if limited then
        perform "outrider".hold_limits(names);
        locked := "outrider".admit(names);
    end if;
    moment := clock_timestamp();
    next_at := least("outrider".admit_scheduled(names, moment), (
        select min(next.lease_expires_at) + interval '10 milliseconds' from unnest(p_names) as n (name)
        cross join lateral (
            select j.lease_expires_at from "outrider".job as j
            where j.subscription = n.name and j.status = 'in_flight'
            order by j.lease_expires_at limit 1) as next));

    select l.lanes, l.partly into found from "outrider".lanes(names, p_generation, p_queues, p_strict) as l;
    if p_suspect then
        select p.places, locked or p.held into places, locked
        from "outrider".pick_suspect(names, p_generation, p_queues, limited, p_strict) as p;
    end if;
    if limited then
        select p.places, p.cut into limits
        from "outrider".pick_limited(found.lanes, p_limit - cardinality(places), places) as p;
        places := places || limits.places;
        cut := limits.cut;
    else
        places := places || "outrider".pick(found.lanes, p_limit - cardinality(places));
    end if;
    -- In a backlog every claim is full: look once a second what they pass over.
    looked := nullif(current_setting('outrider.looked_at', true), '')::double precision;
    if cardinality(places) = p_limit and (extract(epoch from moment) between looked and looked + 1) is not true then
        perform set_config('outrider.looked_at', extract(epoch from moment)::text, false);
        until := (select max("outrider".claim_at(j)) from "outrider".job as j where j.ctid = any (places));
    end if;
    if places <> '{}' then
        return query select l.* from "outrider".lease(places, p_worker, moment) as l;
        get diagnostics taken = row_count;
    end if;

    if cut or taken = p_limit or taken < cardinality(places) then
        due_in := 0;
    else
        due_in := extract(epoch from case when next_at < moment then moment else next_at end - moment);
        -- A job can be claimed and is still there: others have it locked. If they do not take it (they die or roll back), nobody
        -- is notified.
        if locked or exists (
            select from unnest(found.lanes) as l
            cross join lateral (select from "outrider".job as j where "outrider".in_lane(j, l) limit 1) as left_over
            where not limited or "outrider".room(l.subscription, null) > 0) then
            due_in := least(due_in, 1);
            until := 'infinity';
        end if;
    end if;
    if until is not null then
        perform "outrider".close_kept(found.lanes, case when p_suspect then names end, until);
    end if;
    if found.partly then
        due_in := least(due_in, 0.1);
    end if;
    if limited and taken = 0 and reaped = 0 then
        -- Only the locks on the limits were written, and others wait for them: do not wait for the disk.
        perform set_config('synchronous_commit', 'off', true);
    end if;
    last.head := last.head || jsonb_build_object(
        'due_in', due_in,
        'single', not limited and not found.partly and cardinality(found.lanes) = 1 and found.lanes[1].tenanted = 0);
    return next last;
end
$$;

CREATE FUNCTION outrider.claim_at(p_job outrider.job) RETURNS timestamp without time zone
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (((p_job).run_at AT TIME ZONE 'UTC'::text) - (((p_job).priority)::double precision * '00:01:00'::interval));

CREATE FUNCTION outrider.claim_lane(p_worker uuid, p_subscription text, p_generation bigint, p_queue text, p_since timestamp with time zone, p_limit integer) RETURNS SETOF outrider.claimed
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    moment timestamptz := clock_timestamp();
    places tid[];
begin
    perform "outrider".sees_all();
    if not exists (select from "outrider".subscription as s
                   where s.name = p_subscription and s.paused_at is null and s.concurrency is null
                     and s.key_concurrency is null)
       or exists (select from "outrider".setting as p where p.name = 'paused' and p.value <> 0) then
        return;
    end if;
    places := array(
        select j.ctid from "outrider".job as j
        where "outrider".in_lane(j, row(p_subscription, p_generation, p_queue, 0)::"outrider".lane)
          and "outrider".claim_at(j) >= p_since at time zone 'UTC'
        order by "outrider".claim_at(j), j.id limit p_limit for update skip locked);
    if places <> '{}' then
        return query select l.* from "outrider".lease(places, p_worker, moment) as l;
    end if;
end
$$;

CREATE FUNCTION outrider.claimable(p_job outrider.job) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (((p_job).status = 'pending'::text) AND ((p_job).waits_for IS NULL) AND ((p_job).crashes = 0));

CREATE FUNCTION outrider.close_kept(p_lanes outrider.lane[], p_suspects text[], p_until timestamp without time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    -- By lane, and by type for suspects, the job at which the session's last call stopped.
    after   jsonb := coalesce(nullif(current_setting('outrider.kept', true), ''), '{}');
    stopped jsonb;
    kept    bigint[];
    free    bigint[];
begin
    with page as materialized (
        select l::text as place, j.* from unnest(p_lanes) as l
        cross join lateral (
            select j.id, "outrider".claim_at(j), j.unique_key is not null and not j.closed as open from "outrider".job as j
            where "outrider".in_lane(j, l) and "outrider".claim_at(j) <= p_until
              and ("outrider".claim_at(j), j.id) > (coalesce((after -> l::text ->> 0)::timestamp, '-infinity'),
                                                   coalesce((after -> l::text ->> 1)::bigint, 0))
            order by "outrider".claim_at(j), j.id limit 500) as j
        union all
        select n.name, j.* from unnest(p_suspects) as n (name)
        cross join lateral (
            select j.id, "outrider".claim_at(j), j.unique_key is not null and not j.closed as open from "outrider".job as j
            where j.subscription = n.name and j.status = 'pending' and j.waits_for is null and j.crashes > 0
              and ("outrider".claim_at(j), j.id) > (coalesce((after -> n.name ->> 0)::timestamp, '-infinity'),
                                                   coalesce((after -> n.name ->> 1)::bigint, 0))
            order by "outrider".claim_at(j), j.id limit 500) as j
    )
    select array(select page.id from page where page.open),
           -- Where a page was full. The other places that were looked at begin anew.
           (select jsonb_object_agg(last.place, last.job)
            from (select distinct on (p.place) p.place, jsonb_build_array(p.claim_at, p.id) as job,
                         count(*) over (partition by p.place) as jobs
                  from page as p order by p.place, p.claim_at desc, p.id desc) as last
            where last.jobs = 500)
    into kept, stopped;
    stopped := after - coalesce(p_lanes::text[], '{}') - coalesce(p_suspects, '{}') || coalesce(stopped, '{}');
    if stopped <> after then
        perform set_config('outrider.kept', stopped::text, false);
    end if;
    if kept = '{}' then
        return;
    end if;
    -- A transaction that keeps a job holds FOR KEY SHARE: we can update the row, but not lock it FOR UPDATE.
    kept := array(select j.id from "outrider".job as j
                  where j.id = any (kept) and j.status = 'pending' for no key update skip locked);
    free := array(select j.id from "outrider".job as j where j.id = any (kept) for update skip locked);
    update "outrider".job as j set closed = true where j.id = any (kept) and j.id <> all (free);
end
$$;

CREATE FUNCTION outrider.uuid7() RETURNS uuid
    LANGUAGE sql PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$select uuidv7()$$;

CREATE TABLE outrider.outbox (
    tx xid8 DEFAULT pg_current_xact_id() NOT NULL,
    seq bigint NOT NULL,
    id uuid DEFAULT outrider.uuid7() NOT NULL,
    event_type text NOT NULL,
    event_version integer DEFAULT 1 NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    source text NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text NOT NULL,
    channel text DEFAULT 'outbox_default'::text NOT NULL,
    generation bigint DEFAULT 0 NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
PARTITION BY RANGE (seq);

COMMENT ON COLUMN outrider.outbox.target IS 'the one context that shall see the event; null = broadcast';

COMMENT ON COLUMN outrider.outbox.aggregate_id IS 'the ordering key; null = no order';

COMMENT ON COLUMN outrider.outbox.idempotency_key IS 'null = the event''s id';

COMMENT ON COLUMN outrider.outbox.caused_by IS 'the event, or the job, whose handler published this event';

COMMENT ON COLUMN outrider.outbox.origin IS 'the inbox that brought the event; null = born here';

COMMENT ON COLUMN outrider.outbox.erased_at IS 'its payload is gone, for good';

CREATE TABLE outrider.subscription (
    name text NOT NULL,
    kind text NOT NULL,
    context text NOT NULL,
    event_types text[],
    ordering text DEFAULT 'key'::text NOT NULL,
    partitions integer DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    paused_at timestamp with time zone,
    lease interval,
    timeout interval,
    concurrency integer,
    key_concurrency integer,
    keep interval,
    workspace_id text,
    forwards boolean DEFAULT false NOT NULL,
    CONSTRAINT subscription_concurrency_check CHECK ((concurrency > 0)),
    CONSTRAINT subscription_context_check CHECK (((octet_length(context) >= 1) AND (octet_length(context) <= 63))),
    CONSTRAINT subscription_event_types_check CHECK (((cardinality(event_types) > 0) OR (kind = ANY (ARRAY['job'::text, 'inbox'::text])))),
    CONSTRAINT subscription_keep_check CHECK (((keep > '00:00:00'::interval) AND (keep <= '3650 days'::interval))),
    CONSTRAINT subscription_key_concurrency_check CHECK ((key_concurrency > 0)),
    CONSTRAINT subscription_kind_check CHECK ((kind = ANY (ARRAY['reader'::text, 'handler'::text, 'job'::text, 'relay'::text, 'inbox'::text]))),
    CONSTRAINT subscription_lease_check CHECK ((lease > '00:00:00'::interval)),
    CONSTRAINT subscription_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 63))),
    CONSTRAINT subscription_ordering_check CHECK ((ordering = ANY (ARRAY['key'::text, 'none'::text, 'total'::text]))),
    CONSTRAINT subscription_partitions_check CHECK ((((partitions >= 1) AND (partitions <= 1024)) AND ((partitions & (partitions - 1)) = 0))),
    CONSTRAINT subscription_timeout_check CHECK ((timeout > '00:00:00'::interval)),
    CONSTRAINT subscription_total_order_is_one_line CHECK (((ordering <> 'total'::text) OR (partitions = 1))),
    CONSTRAINT subscription_workspace_id_check CHECK (((octet_length(workspace_id) >= 1) AND (octet_length(workspace_id) <= 255)))
);

COMMENT ON COLUMN outrider.subscription.event_types IS 'null = every type; none = it reads nothing: a job that is only enqueued, an inbox';

COMMENT ON COLUMN outrider.subscription.ordering IS 'what waits for a failed event: its key, nothing, or everything';

COMMENT ON COLUMN outrider.subscription.lease IS 'so long a job is its worker''s own, from each renewal';

COMMENT ON COLUMN outrider.subscription.timeout IS 'a job that runs longer is not renewed any more';

COMMENT ON COLUMN outrider.subscription.concurrency IS 'so many of these jobs run at the same time, over all workers';

COMMENT ON COLUMN outrider.subscription.key_concurrency IS 'so many with the same key';

COMMENT ON COLUMN outrider.subscription.keep IS 'of a job type: every job that is done leaves a receipt, which upkeep removes no earlier than after this time';

COMMENT ON COLUMN outrider.subscription.workspace_id IS 'of a relay: only the events of this tenant; null = all';

COMMENT ON COLUMN outrider.subscription.forwards IS 'of a relay: also what an inbox brought';

CREATE FUNCTION outrider.concerns(p_event outrider.outbox, p_subscription outrider.subscription) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN ((((p_subscription).event_types IS NULL) OR ((p_event).event_type = ANY ((p_subscription).event_types))) AND CASE (p_subscription).kind WHEN 'relay'::text THEN ((NOT starts_with((p_event).event_type, 'outrider.canary_'::text)) AND ((p_subscription).forwards OR ((p_event).origin IS NULL)) AND (((p_subscription).workspace_id IS NULL) OR ((p_event).workspace_id = (p_subscription).workspace_id))) ELSE (((p_event).target IS NULL) OR ((p_event).target = (p_subscription).context)) END);

CREATE TABLE outrider.cursor (
    subscription text NOT NULL,
    generation bigint DEFAULT 0 NOT NULL,
    partition integer NOT NULL,
    id bigint NOT NULL,
    seq bigint NOT NULL,
    floor bigint NOT NULL,
    inflight pg_snapshot NOT NULL,
    horizon xid8 NOT NULL,
    owing xid8[],
    owed_after bigint,
    mark_seq bigint NOT NULL,
    mark_xid xid8 NOT NULL,
    cluster bigint NOT NULL,
    takes bigint DEFAULT 0 NOT NULL,
    excused bigint DEFAULT 0 NOT NULL,
    served_by bigint,
    failures integer DEFAULT 0 NOT NULL,
    open_until timestamp with time zone,
    CONSTRAINT cursor_owed_after_check CHECK (((owing IS NULL) = (owed_after IS NULL))),
    CONSTRAINT cursor_owing_check CHECK ((cardinality(owing) > 0)),
    CONSTRAINT cursor_partition_check CHECK ((partition >= 0))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN outrider.cursor.generation IS '0 = whatever has no cursor of its own generation: without generations, everything';

COMMENT ON COLUMN outrider.cursor.seq IS 'every committed event up to here is read, except those of inflight and owing';

COMMENT ON COLUMN outrider.cursor.floor IS 'no event at or below this can belong to a transaction in inflight';

COMMENT ON COLUMN outrider.cursor.inflight IS 'with horizon: the transactions below horizon that had not finished in this snapshot';

COMMENT ON COLUMN outrider.cursor.owing IS 'finished transactions whose late events are being read in pages';

COMMENT ON COLUMN outrider.cursor.owed_after IS 'how far owing has been read';

COMMENT ON COLUMN outrider.cursor.mark_seq IS 'with mark_xid: whoever has an id of mark_xid or above drew only numbers above mark_seq';

COMMENT ON COLUMN outrider.cursor.cluster IS 'log_home() of the log whose transaction ids these are';

COMMENT ON COLUMN outrider.cursor.takes IS 'the sequence takes_<id> at the last commit; what it counted since then was rolled back';

COMMENT ON COLUMN outrider.cursor.excused IS 'the sequence excused_<id> at the last commit: rollbacks in good order';

COMMENT ON COLUMN outrider.cursor.served_by IS 'the generation whose workers serve it; null = its own';

COMMENT ON COLUMN outrider.cursor.failures IS 'in a row, where the handler has a breaker';

COMMENT ON COLUMN outrider.cursor.open_until IS 'the breaker is open: nothing is taken before; after it one event at a time, until one succeeds';

CREATE FUNCTION outrider.count_deaths(p_cursor outrider.cursor, p_excused integer, OUT batch bigint, OUT excused bigint, OUT deaths bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    batch := 1 + coalesce(pg_sequence_last_value(to_regclass(format('"outrider".takes_%s', p_cursor.id))), 0);
    for look in 0 .. 10 loop
        excused := p_excused + coalesce(pg_sequence_last_value(to_regclass(format('"outrider".excused_%s', p_cursor.id))), 0);
        deaths := batch - 1 - p_cursor.takes - (excused - p_cursor.excused);
        exit when deaths < 3 or deaths > 5 or look = 10;
        perform pg_sleep(0.02);
    end loop;
end
$$;

CREATE FUNCTION outrider.count_take(p_cursor bigint, p_takes integer, p_excused integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    drawn bigint;
begin
    if (p_takes between 0 and 1 and p_excused between 0 and 1000) is not true then
        raise 'count_take counts one take and up to 1,000 rollbacks at once, not % and %', p_takes, p_excused
            using errcode = 'OR001';
    end if;
    -- PERFORM would start a query.
    for each in 1 .. p_takes loop
        drawn := nextval(to_regclass(format('"outrider".takes_%s', p_cursor)));
    end loop;
    for each in 1 .. p_excused loop
        drawn := nextval(to_regclass(format('"outrider".excused_%s', p_cursor)));
    end loop;
end
$$;

CREATE FUNCTION outrider.error_fingerprint(p_code text, p_message text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select left(md5(coalesce(p_code, '') || ' ' || regexp_replace(regexp_replace(regexp_replace(
        left(coalesce(p_message, ''), 500),
        '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+', '#', 'g'),
        '''[^'']*''|"[^"]*"', '?', 'g'),
        '[0-9]+', '#', 'g')), 12)
$$;

ALTER TABLE outrider.job ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outrider.job_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE outrider.delivery (
    id bigint DEFAULT nextval('outrider.job_id_seq'::regclass) NOT NULL,
    subscription text NOT NULL,
    generation bigint DEFAULT 0 NOT NULL,
    partition integer NOT NULL,
    seq bigint NOT NULL,
    event_id uuid NOT NULL,
    event_type text NOT NULL,
    workspace_id text,
    ordering_key text,
    payload jsonb,
    status text NOT NULL,
    head boolean NOT NULL,
    reached boolean NOT NULL,
    run_at timestamp with time zone NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    cycle integer DEFAULT 1 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    suspect boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    first_failed_at timestamp with time zone,
    buried_at timestamp with time zone,
    last_error_code text,
    last_error text,
    last_traceback text,
    fingerprint text GENERATED ALWAYS AS (
CASE
    WHEN (last_error_code IS NOT NULL) THEN outrider.error_fingerprint(last_error_code, last_error)
    ELSE NULL::text
END) STORED,
    failure_history jsonb DEFAULT '[]'::jsonb NOT NULL,
    CONSTRAINT delivery_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT delivery_last_traceback_check CHECK ((octet_length(last_traceback) <= 16384)),
    CONSTRAINT delivery_pending_has_a_turn CHECK ((head OR (ordering_key IS NOT NULL) OR (status = ANY (ARRAY['failed'::text, 'discarded'::text])))),
    CONSTRAINT delivery_run_at_check CHECK (((run_at >= '0001-01-02 00:00:00+00'::timestamp with time zone) AND (run_at <= '9999-12-30 23:59:59.999999+00'::timestamp with time zone))),
    CONSTRAINT delivery_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'failed'::text, 'discarded'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.05');

COMMENT ON COLUMN outrider.delivery.generation IS 'the generation of the cursor that it belongs to';

COMMENT ON COLUMN outrider.delivery.ordering_key IS 'what keeps later events waiting: the event''s key, after length:workspace: where it has one; empty = all wait for it; null = nothing';

COMMENT ON COLUMN outrider.delivery.payload IS 'what its handler gets instead of the event''s own: it was edited for a replay';

COMMENT ON COLUMN outrider.delivery.head IS 'the first of its key: the only one that is retried';

COMMENT ON COLUMN outrider.delivery.reached IS 'the cursor has come past it, so that everything before it has been read';

COMMENT ON COLUMN outrider.delivery.suspect IS 'was in a batch whose worker died again and again: runs alone, counted before it runs';

COMMENT ON COLUMN outrider.delivery.last_traceback IS 'where last_error was raised: the innermost frames';

COMMENT ON COLUMN outrider.delivery.fingerprint IS 'errors with the same one have the same cause, as far as their texts say';

CREATE VIEW outrider.owed WITH (security_invoker='true') AS
 SELECT 'event'::text AS kind,
    d.id,
    d.subscription,
    d.generation,
    d.seq,
    d.event_id,
    d.event_type,
    d.status,
    d.run_at,
    d.attempts,
    d.cycle,
    d.workspace_id,
    d.payload,
    d.last_error_code,
    d.last_error,
    d.last_traceback,
    d.fingerprint,
    d.first_failed_at,
    d.buried_at,
    d.failure_history,
    d.created_at,
    NULL::text AS job_key,
    NULL::integer AS event_version,
    NULL::text AS source
   FROM outrider.delivery d
UNION ALL
 SELECT 'job'::text AS kind,
    j.id,
    j.subscription,
    j.generation,
    j.seq,
    j.event_id,
    COALESCE(j.event_type, j.subscription) AS event_type,
    j.status,
    j.run_at,
    j.attempts,
    j.cycle,
    j.workspace_id,
    j.payload,
    j.last_error_code,
    j.last_error,
    j.last_traceback,
    j.fingerprint,
    j.first_failed_at,
    j.buried_at,
    COALESCE(j.failure_history, '[]'::jsonb) AS failure_history,
    j.created_at,
    j.job_key,
    j.event_version,
    j.source
   FROM outrider.job j;

CREATE FUNCTION outrider.dead_letters(p_subscription text DEFAULT NULL::text, p_event_type text DEFAULT NULL::text, p_error_code text DEFAULT NULL::text, p_fingerprint text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone, p_until timestamp with time zone DEFAULT NULL::timestamp with time zone, p_workspace_id text DEFAULT NULL::text, p_generation bigint DEFAULT NULL::bigint, p_after bigint DEFAULT 0, p_limit bigint DEFAULT NULL::bigint) RETURNS SETOF outrider.owed
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    AS $$
begin
    perform "outrider".sees_all();
    return query
    select d.* from "outrider".subscription as s
    cross join lateral (
        select d.* from "outrider".owed as d
        -- Not by equality: then the order is that of the primary key too, and the planner may read the whole table by it.
        where d.subscription >= s.name and d.subscription <= s.name and d.status = 'failed' and d.id > p_after
          and (p_event_type is null or d.event_type = p_event_type)
          and (p_error_code is null or d.last_error_code = p_error_code)
          and (p_fingerprint is null or d.fingerprint = p_fingerprint)
          and (p_since is null or d.buried_at >= p_since)
          and (p_until is null or d.buried_at < p_until)
          and (p_generation is null or d.generation = p_generation)
          and (p_workspace_id is null or p_workspace_id = coalesce(d.workspace_id, (
              select o.workspace_id from "outrider".outbox as o where o.seq = d.seq)))
        order by d.subscription, d.id limit p_limit) as d
    where p_subscription is null or s.name = p_subscription
    order by d.id limit p_limit;
end
$$;

CREATE TABLE outrider.segment (
    name text NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint,
    made_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    begun_at timestamp with time zone,
    closed_at timestamp with time zone,
    detached_at timestamp with time zone,
    wanted_until timestamp with time zone,
    kept text,
    CONSTRAINT segment_check CHECK ((last_seq >= first_seq))
);

COMMENT ON COLUMN outrider.segment.first_seq IS '0 = it has no lower bound: the first of the log';

COMMENT ON COLUMN outrider.segment.last_seq IS 'null = it has no upper bound: the last of the log';

COMMENT ON COLUMN outrider.segment.begun_at IS 'when the log was seen to have reached it';

COMMENT ON COLUMN outrider.segment.closed_at IS 'when the log was seen to be past it: everything in it was published before';

COMMENT ON COLUMN outrider.segment.detached_at IS 'since then it is a table of its own';

COMMENT ON COLUMN outrider.segment.wanted_until IS 'it was attached again: it stays so long';

COMMENT ON COLUMN outrider.segment.kept IS 'why it is still there although its time is over';

CREATE FUNCTION outrider.debts(p_segment outrider.segment) RETURNS SETOF text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
begin
    return query
    select format('a transaction that has published into it is open (%s)',
                  coalesce('process ' || l.pid, 'prepared'))
    from pg_locks as l
    where l.relation = format('"outrider".%I', p_segment.name)::regclass and l.mode = 'RowExclusiveLock' and l.granted
      and l.database = (select d.oid from pg_database as d where d.datname = current_database())
      and l.pid is distinct from pg_backend_pid();
    return query
    select format('%s%s has not read it', c.subscription, case when c.generation <> 0 then ' (generation ' || c.generation || ')' end)
    from "outrider".cursor as c where "outrider".owes(c, p_segment.first_seq, p_segment.last_seq)
    group by c.subscription, c.generation order by c.subscription, c.generation;
    return query
    select format('the relay %s may go back to its mark of %s', m.subscription, date_trunc('second', min(m.at)))
    from (select m.*, jsonb_populate_record(null::"outrider".cursor, m.cursor) as place from "outrider".stream_mark as m) as m
    -- There may be thousands of marks, and most are past the segment: for those nothing is looked up.
    where case when least((m.place).seq, (m.place).floor) >= p_segment.last_seq
                    and ((m.place).owing = '{}' or (m.place).owed_after >= p_segment.last_seq) then false
               else "outrider".owes(m.place, p_segment.first_seq, p_segment.last_seq) end
    group by m.subscription order by m.subscription;
    return query
    select distinct format('the relay %s may have to send a dead letter of it again', r.subscription)
    from "outrider".stream_replayed as r where r.seq between p_segment.first_seq and p_segment.last_seq;
    return query
    select format('%s has %s of it', s.name, concat_ws(' and ',
                  case when found.dead > 0 then found.dead || ' dead letters' end,
                  case when found.owed > 0 then found.owed || ' events that wait' end))
    from "outrider".subscription as s cross join lateral (
        select count(*) filter (where d.status = 'failed') as dead,
               count(*) filter (where d.status in ('pending', 'in_flight')) as owed
        from (select d.status from "outrider".owed as d
              where d.subscription = s.name and d.seq between p_segment.first_seq and p_segment.last_seq
                and d.status in ('pending', 'in_flight', 'failed')
              limit 10000) as d) as found
    where found.dead + found.owed > 0 order by s.name;
end
$$;

CREATE FUNCTION outrider.discard(p_deliveries bigint[], p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
declare
    who       constant text := "outrider".signed(p_by);
    mark      constant jsonb := jsonb_strip_nulls(jsonb_build_object(
        'discarded_at', clock_timestamp(), 'by', who, 'reason', left(p_reason, 2000)));
    discarded integer;
begin
    perform "outrider".sees_all(true);
    with event as (
        update "outrider".delivery as d
        set status = 'discarded', failure_history = d.failure_history || (jsonb_build_object('cycle', d.cycle) || mark)
        where d.id = any (p_deliveries) and d.status = 'failed'
        returning d.subscription, d.event_id, d.last_error_code, d.last_error
    ),
    job as (
        update "outrider".job as j
        set status = 'discarded',
            failure_history = coalesce(j.failure_history, '[]') || (jsonb_build_object('cycle', j.cycle) || mark)
        where j.id = any (p_deliveries) and j.status = 'failed'
        returning j.subscription, j.event_id, j.last_error_code, j.last_error,
                  -- Whose job it was: once it is gone, erase finds that nowhere else.
                  case when j.seq is null then jsonb_build_object('workspace', j.workspace_id, 'job', coalesce(j.job_key, ''))
                       else '{}' end as whose
    )
    insert into "outrider".audit (by, action, subscription, event_id, details)
    select who, 'discard', gone.subscription, gone.event_id, jsonb_strip_nulls(gone.whose || jsonb_build_object(
        'reason', left(p_reason, 2000), 'code', gone.last_error_code, 'error', gone.last_error))
    from (select event.*, '{}'::jsonb as whose from event union all select job.* from job) as gone;
    get diagnostics discarded = row_count;
    return discarded;
end
$$;

CREATE FUNCTION outrider.divert(p_cursor outrider.cursor, p_ordering text, p_seqs bigint[], p_suspicious boolean) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    rest bigint[];
begin
    with held as materialized (
        select o.seq, o.id, o.event_type, o.workspace_id, ordered.ordering_key, seen.known
        from "outrider".outbox as o
        cross join lateral (
            select "outrider".ordering_key(p_ordering, o.workspace_id, o.aggregate_id) as ordering_key) as ordered
        cross join lateral (
            select exists (select from "outrider".delivery as d
                           where d.subscription = p_cursor.subscription and d.seq = o.seq) as known) as seen
        where o.seq = any (p_seqs) and o.seq between p_seqs[1] and p_seqs[cardinality(p_seqs)]
          and (p_suspicious or seen.known
               or exists (select from "outrider".delivery as d
                          where d.subscription = p_cursor.subscription and d.generation = p_cursor.generation
                            and d.status = 'pending' and d.ordering_key = ordered.ordering_key and d.seq < o.seq))
    ),
    passed as (
        update "outrider".delivery as d set reached = true
        from held where held.known and d.subscription = p_cursor.subscription and d.seq = held.seq and not d.reached
    ),
    parked as (
        insert into "outrider".delivery (
            subscription, generation, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at,
            suspect, workspace_id)
        select p_cursor.subscription, p_cursor.generation, p_cursor.partition, held.seq, held.id, held.event_type,
               held.ordering_key, 'pending', held.ordering_key is null, true, now(), p_suspicious, held.workspace_id
        from held
        where not held.known
        order by held.seq
    )
    select array(select read.seq from unnest(p_seqs) as read (seq)
                 where (read.seq in (select held.seq from held)) is not true order by read.seq)
    into rest;
    if p_suspicious then
        perform "outrider".promote(p_cursor.subscription, p_cursor.generation, array(
            select distinct d.ordering_key from "outrider".delivery as d
            where d.subscription = p_cursor.subscription and d.generation = p_cursor.generation and d.status = 'pending'
              and d.suspect and d.ordering_key is not null));
    end if;
    return rest;
end
$$;

CREATE FUNCTION outrider.enqueue(job_type text, payload jsonb DEFAULT '{}'::jsonb, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, priority integer DEFAULT 0, unique_key text DEFAULT NULL::text, on_conflict text DEFAULT 'keep'::text, queue text DEFAULT 'default'::text, key text DEFAULT NULL::text, job_version integer DEFAULT 1, source text DEFAULT 'sql'::text, workspace_id text DEFAULT NULL::text, trace_context jsonb DEFAULT NULL::jsonb) RETURNS uuid
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_variable
declare
    bytes   bigint := octet_length(nullif("outrider".as_text(payload), ''));
    allowed bigint := (select s.value from "outrider".setting as s where s.name = 'payload_max_bytes');
begin
    if job_type is null or job_type !~ '^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)*$' or octet_length(job_type) > 63 then
        raise 'job type % is not lower-case words joined by dots, of at most 63 bytes',
            coalesce(quote_literal(job_type), 'NULL') using errcode = 'OR004';
    end if;
    if payload is null or jsonb_typeof(payload) <> 'object' then
        raise '% was not enqueued: the payload must be a JSON object', job_type using errcode = 'OR004';
    end if;
    if (bytes <= allowed) is not true then
        raise '% was not enqueued: its payload has % bytes, the limit is %', job_type,
            coalesce(bytes::text, 'more than 134217728'), allowed
            using errcode = 'OR004', hint = 'The setting payload_max_bytes holds the limit.';
    end if;
    if on_conflict is null or on_conflict not in ('keep', 'replace', 'debounce') then
        raise '% was not enqueued: on_conflict is keep, replace or debounce, not %', job_type,
            quote_nullable(on_conflict) using errcode = 'OR004';
    end if;
    if priority is null or priority not between -100 and 100 then
        raise '% was not enqueued: priority % is not between -100 and 100', job_type, quote_nullable(priority)
            using errcode = 'OR004';
    end if;
    if queue is null or queue !~ '^[a-z][a-z0-9_]*$' or octet_length(queue) > 63 then
        raise '% was not enqueued: queue % is not a lower-case word', job_type, quote_nullable(queue)
            using errcode = 'OR004';
    end if;
    if unique_key = '' or key = '' then
        raise '% was not enqueued: an empty key or unique key', job_type
            using errcode = 'OR004', hint = 'Leave it out, or pass NULL.';
    end if;
    if octet_length(unique_key) > 512 or octet_length(key) > 512 then
        raise '% was not enqueued: a key or unique key of more than 512 bytes', job_type using errcode = 'OR004';
    end if;
    return ("outrider".enqueue_one(
        job_type, payload, null, run_at, priority, unique_key, on_conflict, queue, key, job_version, source,
        coalesce(workspace_id, nullif(current_setting('app.workspace_id', true), '')), trace_context,
        coalesce(nullif(current_setting('outrider.generation', true), '')::bigint, 0))).job_id;
end
$_$;

CREATE FUNCTION outrider.enqueue_one(p_job_type text, p_payload jsonb, p_id uuid DEFAULT NULL::uuid, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_priority integer DEFAULT 0, p_unique_key text DEFAULT NULL::text, p_on_conflict text DEFAULT 'keep'::text, p_queue text DEFAULT 'default'::text, p_key text DEFAULT NULL::text, p_version integer DEFAULT 1, p_source text DEFAULT 'sql'::text, p_workspace_id text DEFAULT NULL::text, p_trace_context jsonb DEFAULT NULL::jsonb, p_generation bigint DEFAULT 0, p_poke boolean DEFAULT true, p_caused_by uuid DEFAULT NULL::uuid, OUT job_id uuid, OUT outcome text) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    due     timestamptz := coalesce(p_run_at, clock_timestamp());
    made_id uuid := coalesce(p_id, "outrider".uuid7());
begin
    if p_poke then
        perform "outrider".notify("outrider".generation_channel(p_generation), p_job_type);
    end if;
    loop
        -- Nothing is returned: whoever enqueues needs no right to read.
        insert into "outrider".job (
            subscription, generation, event_id, event_version, source, workspace_id, trace_context, run_at, queue, priority,
            job_key, unique_key, payload, caused_by)
        values (
            p_job_type, p_generation, made_id, p_version, p_source, p_workspace_id, p_trace_context, due, p_queue, p_priority,
            p_key, p_unique_key, p_payload, p_caused_by)
        on conflict do nothing;
        if found then
            job_id := made_id;
            outcome := 'created';
            exit;
        end if;
        select o.job_id, o.outcome into job_id, outcome
        from "outrider".enqueue_onto(
            p_job_type, p_payload, due, p_priority, p_unique_key, p_on_conflict, p_queue, p_key, p_version, p_source,
            p_workspace_id, p_trace_context, p_generation) as o;
        exit when job_id is not null;
        -- It was claimed in between: the next insert will do, unless there is a third.
    end loop;
    if p_unique_key is not null and p_on_conflict <> 'keep' then
        perform "outrider".replace_closed(p_job_type, p_unique_key, p_workspace_id);
    end if;
end
$$;

CREATE FUNCTION outrider.enqueue_onto(p_job_type text, p_payload jsonb, p_run_at timestamp with time zone, p_priority integer, p_unique_key text, p_on_conflict text, p_queue text, p_key text, p_version integer, p_source text, p_workspace_id text, p_trace_context jsonb, p_generation bigint, OUT job_id uuid, OUT outcome text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    before "outrider".job;
begin
    -- It runs as the owner, who sees every tenant: whoever has called it must, too, or stay with its own.
    if (p_workspace_id = nullif(current_setting('app.workspace_id', true), '')) is not true
       and not "outrider".sees_every_tenant(coalesce(nullif(current_setting('role'), 'none'), session_user)) then
        raise 'row-level security: % is of another workspace than app.workspace_id', quote_nullable(left(p_job_type, 100))
            using errcode = 'insufficient_privilege';
    end if;
    if (p_on_conflict in ('keep', 'replace', 'debounce')) is not true then
        raise '% was not enqueued: on_conflict is keep, replace or debounce, not %', quote_nullable(left(p_job_type, 100)),
            quote_nullable(left(p_on_conflict, 100)) using errcode = 'OR004';
    end if;
    -- Nobody claims it before the caller commits: it shall see what the caller has written.
    select d.* into before from "outrider".job as d
    where d.subscription = p_job_type and coalesce(d.workspace_id, '') = coalesce(p_workspace_id, '')
      and d.unique_key = p_unique_key and d.status = 'pending' and d.seq is null and not d.closed
    for key share;
    if not found then
        return;
    end if;
    if p_on_conflict = 'keep' then
        job_id := before.event_id;
        outcome := 'kept';
        return;
    end if;
    update "outrider".job as d
    set payload = p_payload, event_version = p_version, source = p_source, workspace_id = p_workspace_id,
        trace_context = p_trace_context, generation = p_generation, queue = p_queue, priority = p_priority,
        job_key = p_key, waits_for = null, attempts = 0, crashes = 0,
        run_at = case p_on_conflict when 'replace' then p_run_at else greatest(d.run_at, p_run_at) end
    where d.id = before.id and d.status = 'pending' and not d.closed
    returning d.event_id into job_id;
    if found then
        outcome := case p_on_conflict when 'replace' then 'replaced' else 'debounced' end;
    end if;
end
$$;

CREATE FUNCTION outrider.erase(p_workspace_id text, p_kind text, p_subject text, p_jobs boolean, p_from text, p_after bigint, p_scan integer, p_reason text, p_by text DEFAULT NULL::text, p_audit bigint DEFAULT NULL::bigint, OUT place bigint, OUT audit bigint, OUT events bigint, OUT jobs bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '10s'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    who    constant text := "outrider".signed(p_by);
    ids    uuid[];
    places bigint[];
    names  text[];
    owed   bigint;
begin
    perform "outrider".sees_all(true);
    if coalesce(p_reason, '') = '' then
        raise 'nothing was erased: a reason is required, for the audit' using errcode = 'OR006';
    end if;
    perform "outrider".refuse_nobody(p_workspace_id, p_kind, p_subject);
    audit := p_audit;
    if audit is not null and not exists (
        select from "outrider".audit as a
        where a.id = p_audit and a.action = 'erase' and (a.role, a.by) = (session_user, who) and not a.details ? 'finished_at'
          and a.at > clock_timestamp() - interval '1 day'
          and (a.details ->> 'workspace', a.details ->> 'kind', a.details ->> 'subject')
              is not distinct from (left(p_workspace_id, 255), left(p_kind, 255), left(p_subject, 512))) then
        raise 'nothing was erased: audit entry % is not of this run', p_audit using errcode = 'OR006';
    end if;
    if audit is null then
        insert into "outrider".audit (by, action, details)
        values (who, 'erase', jsonb_strip_nulls(jsonb_build_object(
            'reason', left(p_reason, 2000), 'workspace', left(p_workspace_id, 255), 'kind', left(p_kind, 255),
            'subject', left(p_subject, 512), 'events', 0, 'jobs', 0)))
        returning id into audit;
    end if;
    events := 0;
    jobs := 0;
    if p_from in ('pending', 'rest') then
        update "outrider".rollup_pending as p
        set carried = '{}', processed_at = coalesce(p.processed_at, now()), error = 'erased'
        where p.carried <> '{}' and (
            p_subject is null and p.workspace_id = p_workspace_id
            or exists (select from "outrider".outbox as o where o.id = p.event_id and o.erased_at is not null));
        -- Paused, not deleted: a running worker would register it again, and enqueue.
        with blanked as (
            update "outrider".schedule as s
            set job = s.job || '{"payload": {}}', paused_at = coalesce(s.paused_at, clock_timestamp())
            where (p_workspace_id is null or s.job ->> 'workspace_id' = p_workspace_id)
              and (p_subject is null or p_jobs and s.job ->> 'key' = p_subject)
              and (s.job -> 'payload' <> '{}' or s.paused_at is null)
            returning s.name
        )
        select array_agg(blanked.name order by blanked.name) into names from blanked;
        if names is not null then
            update "outrider".audit as a
            set details = a.details || jsonb_build_object('schedules', coalesce(a.details -> 'schedules', '[]') || to_jsonb(names))
            where a.id = audit;
        end if;
        if p_from = 'rest' then
            perform "outrider".erase_rest(p_workspace_id, p_subject, p_jobs, audit);
        end if;
        return;
    end if;
    if p_from = 'receipts' then
        place := "outrider".erase_receipts(p_workspace_id, p_subject, p_jobs, p_after, greatest(p_scan / 20, 1));
        return;
    end if;
    select max(t.place) filter (where t.line is null),
           coalesce(array_agg(t.place) filter (where not t.erased), '{}'), coalesce(array_agg(t.found) filter (where not t.erased), '{}')
    into place, places, ids
    from "outrider".tenant_page(p_workspace_id, p_kind, p_subject, p_jobs, p_from, p_after, p_scan) as t;
    if places = '{}' then
        return;
    end if;
    if p_from = 'jobs' then
        jobs := cardinality(places);
        owed := "outrider".erase_jobs(places);
    else
        events := cardinality(places);
        owed := "outrider".erase_events(case p_from when 'events' then 'outbox' else p_from end, places, ids, who, p_reason);
    end if;
    update "outrider".audit as a
    set details = a.details - 'payload' - 'before' - 'owed' - 'receipt' - 'error' || '{"erased": true}'
    where a.event_id = any (ids) and a.details ?| array['payload', 'before', 'owed', 'receipt', 'error'];
    update "outrider".audit as a
    set details = a.details || jsonb_build_object(
        'events', (a.details ->> 'events')::bigint + events, 'jobs', (a.details ->> 'jobs')::bigint + jobs,
        'withdrawn', coalesce((a.details ->> 'withdrawn')::bigint, 0) + owed)
    where a.id = audit;
end
$$;

CREATE FUNCTION outrider.erase_events(p_source text, p_seqs bigint[], p_ids uuid[], p_by text, p_reason text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    names     text[];
    concerned text[];
    held      text[] := '{}';
    gone      record;
    owed      bigint;
begin
    loop
        concerned := array(
            select distinct e.subscription from "outrider".event_status as e
            join "outrider".subscription as s on s.name = e.subscription
            where e.seq = any (p_seqs) and (e.status <> 'delivered' or s.kind = 'relay'));
        exit when concerned <@ held;
        held := held || concerned;
        perform from "outrider".subscription as s where s.name = any (held) order by s.name for no key update;
        perform from "outrider".cursor as c where c.subscription = any (held)
        order by c.subscription, c.generation, c.partition for update;
    end loop;
    owed := (select count(distinct e.seq) from "outrider".event_status as e
             where e.seq = any (p_seqs) and e.status in ('pending', 'in_flight', 'failed'));
    insert into "outrider".withdrawal (seq, event_id, withdrawn_by, reason, outcomes)
    select asked.seq, asked.id, p_by, left(p_reason, 2000), (
        select jsonb_object_agg(e.subscription, 'delivered') from "outrider".event_status as e
        join "outrider".subscription as s on s.name = e.subscription
        where e.seq = asked.seq and s.kind in ('reader', 'relay') and e.status = 'delivered')
    from unnest(p_seqs, p_ids) as asked (seq, id)
    on conflict do nothing;

    for gone in
        update "outrider".delivery as d
        set status = 'discarded', head = false, buried_at = null, payload = case when d.payload is not null then '{}'::jsonb end,
            last_error_code = '(erased)', last_error = null, last_traceback = null,
            failure_history = "outrider".scrubbed(d.failure_history)
        from (select d.id, d.status from "outrider".delivery as d
              where d.event_id = any (p_ids) and d.seq = any (p_seqs)) as was
        where d.id = was.id
        returning d.subscription, d.generation, d.event_type, d.ordering_key, was.status as was
    loop
        continue when gone.was <> 'pending';
        perform "outrider".promote(gone.subscription, gone.generation, array[gone.ordering_key]);
        perform "outrider".notify("outrider".generation_channel(gone.generation), gone.event_type);
    end loop;
    perform "outrider".erase_jobs(array(
        select j.id from "outrider".job as j
        where j.event_id = any (p_ids) and j.seq = any (p_seqs) and j.lease_token is null  -- the predicate of job_of_event
        union all
        select j.id from "outrider".job as j
        where j.event_id = any (p_ids) and j.seq = any (p_seqs) and j.status = 'in_flight'));

    names := array(select s.name from "outrider".subscription as s where s.kind <> 'inbox'
                   union select a.subscription from "outrider".audit as a  -- whose receipts are still there
                   where a.action = 'retire' and a.subscription is not null);
    execute format($receipts$
        update "outrider".event_handled as h
        set result = null, failure_history = "outrider".scrubbed(h.failure_history), workspace_id = null
        from (select n.name, "outrider".receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id) as key, o.id
              from unnest($1) as n (name) cross join "outrider".%I as o
              where o.seq = any ($2)) as asked
        where h.handler_name = asked.name and h.idempotency_key = asked.key and h.event_id = asked.id
          and (h.result is not null or h.failure_history is not null)$receipts$, p_source) using names, p_seqs;
    delete from "outrider".stream_replayed as r where r.event_id = any (p_ids);
    execute format('update "outrider".%I set payload = ''{}'', trace_context = null, erased_at = now() where seq = any ($1)',
                   p_source) using p_seqs;
    return owed;
end
$_$;

CREATE FUNCTION outrider.erase_jobs(p_jobs bigint[]) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    gone record;
    owed bigint := 0;
begin
    for gone in
        update "outrider".job as j
        set status = 'discarded', waits_for = null, buried_at = null, locked_by = null, locked_at = null, lease_token = null,
            lease_expires_at = null, cancelled_at = null, progress = null,
            payload = case when j.payload is not null then '{}'::jsonb end, trace_context = null, last_error_code = '(erased)',
            last_error = null, fingerprint = null, last_traceback = null, failure_history = "outrider".scrubbed(j.failure_history)
        from (select j.id, j.status from "outrider".job as j where j.id = any (p_jobs)) as was
        where j.id = was.id
        returning j.subscription, j.generation, j.job_key, was.status as was
    loop
        owed := owed + (gone.was in ('pending', 'in_flight', 'failed'))::integer;
        continue when gone.was not in ('pending', 'in_flight');
        if gone.job_key is not null then
            perform "outrider".wake_jobs(array[gone.subscription]);
        end if;
        perform "outrider".notify("outrider".generation_channel(gone.generation), gone.subscription);
    end loop;
    return owed;
end
$$;

CREATE FUNCTION outrider.erase_receipts(p_workspace_id text, p_subject text, p_jobs boolean, p_page bigint, p_pages integer) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    next constant bigint := p_page + p_pages;
begin
    update "outrider".event_handled as h
    set result = null, failure_history = "outrider".scrubbed(h.failure_history), workspace_id = null, job_key = null
    where h.ctid >= format('(%s,0)', p_page)::tid and h.ctid < format('(%s,0)', next)::tid
      and (h.result is not null or h.failure_history is not null)
      and (p_workspace_id is null or h.workspace_id = p_workspace_id)
      and (p_subject is null or p_jobs and h.job_key = p_subject);
    return case when next * current_setting('block_size')::bigint < pg_relation_size('"outrider".event_handled') then next end;
end
$$;

CREATE FUNCTION outrider.erase_rest(p_workspace_id text, p_subject text, p_jobs boolean, p_audit bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if exists (select from "outrider".audit as a where a.action = 'attach_segment' and a.id > p_audit) then
        raise 'a segment was attached to the log meanwhile and may have been missed: run erase again' using errcode = 'OR006';
    end if;
    update "outrider".audit as a set details = a.details - 'payload' - 'before' - 'error' || '{"erased": true}'
    where a.action in ('edit', 'discard') and a.details ?| array['payload', 'before', 'error'] and a.details ? 'job'
      and (p_workspace_id is null or a.details ->> 'workspace' = p_workspace_id)
      and (p_subject is null or p_jobs and a.details ->> 'job' = p_subject);
    update "outrider".audit as a set details = a.details || jsonb_build_object('finished_at', clock_timestamp())
    where a.id = p_audit;
end
$$;

CREATE FUNCTION outrider.failure(p_cycle integer, p_attempt integer, p_code text, p_message text, p_worker text, p_batch text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select jsonb_strip_nulls(jsonb_build_object(
        'cycle', p_cycle, 'attempt', p_attempt, 'at', clock_timestamp(), 'code', p_code, 'message', p_message,
        'worker', p_worker, 'batch', p_batch))
$$;

CREATE FUNCTION outrider.fire(p_name text, p_seen timestamp with time zone, p_to timestamp with time zone, p_times timestamp with time zone[], p_job_type text, p_payload jsonb, p_queue text, p_priority integer, p_version integer, p_source text, p_key text, p_workspace_id text, p_generation bigint, p_poke boolean) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform from "outrider".schedule as s
    where s.name = p_name and s.fired_at = p_seen and s.paused_at is null for update skip locked;
    if not found then
        return false;
    end if;
    update "outrider".schedule as s
    set fired_at = p_to, enqueued_at = case when p_times = '{}' then s.enqueued_at else clock_timestamp() end
    where s.name = p_name;
    perform "outrider".enqueue_one(
        p_job_type, p_payload, null, t.at, p_priority, null, 'keep', p_queue, p_key, p_version, p_source, p_workspace_id,
        null, p_generation, p_poke)
    from unnest(p_times) as t (at);
    return true;
end
$$;

CREATE FUNCTION outrider.fitting(p_payloads text, p_ids bigint[]) RETURNS integer
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    payload jsonb;
    count   integer := 0;
    bytes   bigint := 0;
begin
    for payload in execute p_payloads using p_ids loop
        count := count + 1;
        bytes := bytes + coalesce("outrider".stored_bytes(payload), 0);
        if bytes >= "outrider".batch_bytes() then
            return count;
        end if;
    end loop;
    return null;
end
$$;

CREATE FUNCTION outrider.fold_generation(p_subscription text, p_generation bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '2s'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    sub       "outrider".subscription;
    lowest    bigint;
    strangers bigint;
    unread    boolean;
    lines     text[];
begin
    perform "outrider".sees_all(true);
    if current_setting('transaction_isolation') <> 'read committed'
       or pg_current_xact_id_if_assigned() is not null then
        raise 'fold_generation must be the first statement of a READ COMMITTED transaction' using errcode = 'OR001';
    end if;
    lowest := (select min(c.seq) from "outrider".cursor as c
               where c.subscription = p_subscription and c.generation in (0, p_generation));
    if p_generation = 0 or lowest < pg_sequence_last_value('"outrider".outbox_seq'::regclass) - 100000 then
        return false;
    end if;
    -- register and open_generation hold this row while they add cursors.
    select s.* into sub from "outrider".subscription as s where s.name = p_subscription for no key update skip locked;
    if (select count(*) from (select from "outrider".cursor as c
                              where c.subscription = p_subscription and c.generation in (0, p_generation)
                              order by c.generation, c.partition for update skip locked) as held)
       is distinct from 2 * sub.partitions then
        return false;
    end if;

    select "outrider".foreign_floor(pg_current_snapshot()),
           -- LIMIT 1, because for a plain join the planner might scan the log once per cursor.
           exists (select from "outrider".outbox as o cross join lateral (
                       select from "outrider".cursor as c
                       where c.subscription = p_subscription and c.generation in (0, p_generation) and o.seq > c.seq
                         and c.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1)
                       limit 1) as not_passed
                   where o.seq > lowest and o.generation = p_generation
                     and "outrider".concerns(o, sub))
           or exists (select from "outrider".cursor as c
                      cross join "outrider".late_transactions(
                          c.inflight, c.horizon, pg_current_snapshot(), c.floor, c.seq) as late (tx)
                      cross join lateral (
                          select o.* from "outrider".outbox as o
                          where (o.tx, o.seq) > (late.tx, c.floor) and (o.tx, o.seq) <= (late.tx, c.seq)
                            and o.seq > c.floor and o.seq <= c.seq
                          order by o.tx, o.seq) as o
                      where c.subscription = p_subscription and c.generation in (0, p_generation)
                        and c.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1)
                        and o.generation = p_generation
                        and "outrider".concerns(o, sub))
    into strangers, unread;
    if unread or exists (
        select from "outrider".cursor as c
        where c.subscription = p_subscription and c.generation in (0, p_generation)
          -- Pages of late events, an open breaker, or a restore after which no take has rebased the cursor.
          and (c.owing is not null or c.open_until > now() or strangers > c.seq
               or c.cluster <> (select "outrider".log_home())
               or c.horizon >= pg_snapshot_xmax(pg_current_snapshot()))) then
        return false;
    end if;

    -- The generation's cursor has read these; generation 0 must not find them again as late events: see read.
    update "outrider".cursor as c set floor = strangers
    where c.subscription = p_subscription and c.generation = 0 and c.floor < strangers;
    with moved as (
        update "outrider".delivery as d set generation = 0, head = d.ordering_key is null and d.head
        where d.subscription = p_subscription and d.generation = p_generation
        returning d.ordering_key
    )
    select array_agg(distinct moved.ordering_key) filter (where moved.ordering_key is not null) into lines from moved;
    perform "outrider".promote(p_subscription, 0, lines);
    delete from "outrider".cursor as c where c.subscription = p_subscription and c.generation = p_generation;
    return true;
end
$$;

CREATE FUNCTION outrider.foreign_floor(p_now pg_snapshot) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    -- seq + 0: for a plain max(seq) the planner walks the whole log backward by seq, in search of a tx that is not there
    -- (with a million events 0.2 s instead of less than 1 ms).
    select coalesce(greatest(
        (select max(newest.seq)
         from (select pg_snapshot_xip(p_now) as tx) as listed,
              lateral (select max(o.seq + 0) as seq from "outrider".outbox as o where o.tx = listed.tx) as newest),
        (select max(o.seq + 0) from "outrider".outbox as o where o.tx >= pg_snapshot_xmax(p_now))
    ), 0)
$$;

CREATE FUNCTION outrider.forget_receipts(p_deliveries bigint[], p_by text, p_reason text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    with gone as (
        delete from "outrider".event_handled as h using "outrider".owed as d, "outrider".outbox as o
        where d.id = any (p_deliveries) and o.seq = d.seq and h.handler_name = d.subscription
          and h.idempotency_key = "outrider".receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
        returning d.id, to_jsonb(h) as receipt
    )
    insert into "outrider".audit (by, action, subscription, event_id, details)
    select p_by, 'force_replay', d.subscription, d.event_id, jsonb_strip_nulls(jsonb_build_object(
        'reason', left(p_reason, 2000), 'receipt', gone.receipt,
        'discarded', nullif(gone.receipt is null and d.status = 'discarded', false)))
    from "outrider".owed as d left join gone on gone.id = d.id
    where d.id = any (p_deliveries);
end
$$;

CREATE FUNCTION outrider.forget_workers(p_id uuid DEFAULT NULL::uuid) RETURNS TABLE(id uuid, subscriptions text[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
    return query
    delete from "outrider".worker as w
    where case when p_id is null then w.seen_at < now() - interval '1 day' else w.id = p_id end
    returning w.id, w.subscriptions;
end
$$;

CREATE FUNCTION outrider.generation_channel(p_generation bigint) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE p_generation WHEN 0 THEN 'outbox_default'::text ELSE ('outbox_gen_'::text || (p_generation)::text) END;

CREATE FUNCTION outrider.gone_job(p_job_id uuid, p_subscription text) RETURNS TABLE(subscription text, outcome text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
begin
    return query
    select h.handler_name, 'done' from "outrider".subscription as s
    left join lateral (select o.* from "outrider".outbox as o where o.id = p_job_id limit 1) as o on true
    join "outrider".event_handled as h
        on h.handler_name = s.name
       and h.idempotency_key = "outrider".receipt_key(o.workspace_id, o.event_type, o.idempotency_key, p_job_id)
    where s.kind = 'job' and s.name = coalesce(p_subscription, s.name);
    if not found then
        return query select p_subscription, 'not_found';
    end if;
end
$$;

CREATE FUNCTION outrider.has_workers(p_subscription text, p_generation bigint, p_queue text) RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return exists (select from "outrider".worker as w
                   where w.generation = p_generation and p_subscription = any (w.subscriptions)
                     and p_subscription <> all (w.unable) and not w.stopping
                     and (w.queues is null or p_queue = any (w.queues))
                     and "outrider".is_live(w.seen_at));
end
$$;

CREATE FUNCTION outrider.hold_limits(p_names text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    limited constant text[] := array(
        select s.name from "outrider".subscription as s
        where s.name = any (p_names) and (s.concurrency is not null or s.key_concurrency is not null));
begin
    insert into "outrider".job_limit (subscription)
    select n.name from unnest(limited) as n (name)
    where not exists (select from "outrider".job_limit as l where l.subscription = n.name)
    order by n.name
    on conflict do nothing;
    perform from "outrider".job_limit as l where l.subscription = any (limited) order by l.subscription for update;
end
$$;

CREATE FUNCTION outrider.hold_partitions(p_deliveries bigint[], p_new_generation bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    places bigint[];
    held   bigint[] := '{}';
    wrong  text;
begin
    -- Again after the wait: partitions may have doubled, or a generation was opened or folded.
    loop
        places := array(
            select distinct c.id from "outrider".delivery as d join "outrider".cursor as c
                on c.subscription = d.subscription and c.partition = d.partition
               and c.generation in (d.generation, coalesce(p_new_generation, d.generation))
            where d.id = any (p_deliveries));
        exit when places <@ held;
        held := array(select locked.id from (
            select c.id from "outrider".cursor as c where c.id = any (places)
            order by c.subscription, c.generation, c.partition for update) as locked);
    end loop;
    -- Under the lock, so that the generation stays.
    wrong := (select d.subscription from "outrider".delivery as d
              where d.id = any (p_deliveries) and p_new_generation is not null
                and not exists (select from "outrider".cursor as c
                                where c.subscription = d.subscription and c.generation = p_new_generation)
              limit 1);
    if wrong is not null then
        raise 'no worker of generation % has started for "%"', p_new_generation, wrong
            using errcode = 'OR006', hint = format('Its generations are %s. Start workers of that generation, or leave it out.', (
                select string_agg(distinct c.generation::text, ', ') from "outrider".cursor as c where c.subscription = wrong));
    end if;
end
$$;

CREATE FUNCTION outrider.hold_subscription(p_name text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform "outrider".sees_all(true);  -- otherwise the change would leave out rows that the role does not see
    perform from "outrider".subscription as s where s.name = p_name for no key update;
    if not found then
        raise 'there is no subscription %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    perform from "outrider".cursor as c where c.subscription = p_name order by c.generation, c.partition for update;
end
$$;

CREATE FUNCTION outrider.in_lane(p_job outrider.job, p_lane outrider.lane) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (((p_job).subscription = (p_lane).subscription) AND ((p_job).generation = (p_lane).generation) AND ((p_job).queue = (p_lane).queue) AND (num_nonnulls((p_job).workspace_id) = (p_lane).tenanted) AND ((p_job).status = 'pending'::text) AND ((p_job).waits_for IS NULL) AND ((p_job).crashes = 0));

CREATE FUNCTION outrider.in_turn(p_job outrider.job, p_lane outrider.lane) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (((p_job).subscription = (p_lane).subscription) AND ((p_job).generation = (p_lane).generation) AND ((p_job).queue = (p_lane).queue) AND ((p_job).workspace_id IS NOT NULL) AND ((p_job).status = 'pending'::text) AND ((p_job).waits_for IS NULL) AND ((p_job).crashes = 0));

CREATE FUNCTION outrider.in_workspace(p_workspace_id text, p_name text) RETURNS text
    LANGUAGE sql STABLE
    RETURN (COALESCE((((length(p_workspace_id) || ':'::text) || p_workspace_id) || ':'::text), ''::text) || p_name);

CREATE FUNCTION outrider.ingest(p_subscription text, p_stream text, p_after text, p_position text, p_channel text, p_generation bigint, p_id text[], p_event_type text[], p_event_version integer[], p_occurred_at text[], p_source text[], p_target text[], p_content_class text[], p_workspace_id text[], p_aggregate_kind text[], p_aggregate_id text[], p_entity_version bigint[], p_payload text[], p_idempotency_key text[], p_trace_context text[], OUT outcome text, OUT events bigint, OUT stands text) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
begin
    perform "outrider".sees_all();
    select s.position into stands from "outrider".stream as s
    where s.subscription = p_subscription and s.name = p_stream for update;
    events := 0;
    if stands is distinct from p_after then
        outcome := 'moved';
        return;
    end if;
    if exists (select from "outrider".subscription as s where s.name = p_subscription and s.paused_at is not null)
       or exists (select from "outrider".setting as s where s.name = 'paused' and s.value <> 0) then
        outcome := 'paused';
        return;
    end if;
    with told as materialized (
        select distinct on (e.id) e.*
        from unnest(
            p_id, p_event_type, p_event_version, p_occurred_at, p_source, p_target, p_content_class, p_workspace_id,
            p_aggregate_kind, p_aggregate_id, p_entity_version, p_payload, p_idempotency_key, p_trace_context
        ) with ordinality as e (
            id, event_type, event_version, occurred_at, source, target, content_class, workspace_id, aggregate_kind,
            aggregate_id, entity_version, payload, idempotency_key, trace_context, place)
        order by e.id, e.place
    ),
    born as (
        insert into "outrider".outbox (
            id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
            aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context, origin)
        select e.id::uuid, e.event_type, e.event_version, coalesce(e.occurred_at::timestamptz, clock_timestamp()), e.source, e.target, e.content_class,
               p_channel, p_generation, e.workspace_id, e.aggregate_kind, e.aggregate_id, e.entity_version,
               e.payload::jsonb, e.idempotency_key, e.trace_context::jsonb, p_subscription
        from told as e
        where not exists (select from "outrider".event_handled as h
                          where h.handler_name = p_subscription and h.idempotency_key = e.id)
        order by e.place
        returning id, seq, generation, content_class
    ),
    receipts as (
        insert into "outrider".event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
        select p_subscription, born.id::text, born.id, born.seq, born.generation, born.content_class from born
        returning 1
    )
    select count(*) into events from receipts;
    update "outrider".stream as s
    set position = p_position, events = s.events + ingest.events, moved_at = clock_timestamp()
    where s.subscription = p_subscription and s.name = p_stream;
    outcome := 'ingested';
    stands := p_position;
end
$$;

CREATE FUNCTION outrider.is_live(p_seen_at timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN ((p_seen_at >= (statement_timestamp() - '00:00:30'::interval)) AND (p_seen_at <= (statement_timestamp() + '00:01:00'::interval)));

CREATE FUNCTION outrider.is_withdrawn(p_seq bigint) RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return exists (select from "outrider".withdrawal as w where w.seq = p_seq);
end
$$;

CREATE FUNCTION outrider.jobs_page(p_type text DEFAULT NULL::text, p_queue text DEFAULT NULL::text, p_key text DEFAULT NULL::text, p_workspace_id text DEFAULT NULL::text, p_states text[] DEFAULT NULL::text[], p_payload jsonb DEFAULT NULL::jsonb, p_after bigint DEFAULT 0, p_until bigint DEFAULT NULL::bigint, p_scan integer DEFAULT 1000, p_classes text[] DEFAULT NULL::text[], OUT place bigint, OUT searched integer, OUT jobs bigint[], OUT states text[]) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    AS $$
begin
    perform "outrider".sees_all();
    with read as materialized (
        select j.id, j.seq, j.subscription, j.queue, j.job_key, j.workspace_id, j.payload,
               case j.status when 'in_flight' then 'running' when 'discarded' then 'cancelled' else j.status end as state
        from "outrider".job as j
        where j.id > p_after and j.id <= coalesce(p_until, 9223372036854775807) order by j.id limit p_scan
    ),
    found as materialized (
        select read.id, read.state from read
        left join lateral (
            select o.aggregate_id, o.workspace_id, o.payload, o.content_class from "outrider".outbox as o
            where o.seq = read.seq and num_nonnulls(p_key, p_workspace_id, p_payload) > 0 limit 1) as o on true
        where (p_type is null or read.subscription = p_type)
          and (p_queue is null or read.queue = p_queue)
          and (p_states is null or read.state = any (p_states))
          and (p_key is null or coalesce(read.job_key, o.aggregate_id) = p_key)
          and (p_workspace_id is null or coalesce(read.workspace_id, o.workspace_id) = p_workspace_id)
          and (p_payload is null or not exists (
              select from jsonb_each_text(p_payload) as wanted
              cross join lateral (
                  select case when read.seq is null or p_classes is null or o.content_class = any (p_classes)
                              then coalesce(read.payload, o.payload) #> string_to_array(wanted.key, '.') end as value) as field
              where jsonb_typeof(field.value) in ('string', 'number', 'boolean') is not true
                 or field.value #>> '{}' <> wanted.value))
    )
    select (select max(read.id) from read), (select count(*) from read),
           coalesce(array_agg(found.id order by found.id), '{}'), coalesce(array_agg(found.state order by found.id), '{}')
    into place, searched, jobs, states
    from found;
end
$$;

CREATE FUNCTION outrider.keep_sample(p_seq bigint, p_waiting double precision, p_owed bigint, p_dead bigint, p_handled bigint, p_failed bigint) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    insert into "outrider".sample (minute, seq, waiting, owed, dead, handled, failed)
    values (extract(minute from clock_timestamp()), p_seq, p_waiting, p_owed, p_dead, p_handled,
            p_failed)
    on conflict (minute) do update
    set taken_at = excluded.taken_at, seq = excluded.seq, waiting = excluded.waiting, owed = excluded.owed, dead = excluded.dead,
        handled = excluded.handled, failed = excluded.failed;
$$;

CREATE FUNCTION outrider.lanes(p_names text[], p_generation bigint, p_queues text[], p_strict boolean, OUT lanes outrider.lane[], OUT partly boolean) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    -- By type, the lane at which the session's last claim stopped.
    after   jsonb := coalesce(nullif(current_setting('outrider.lanes', true), ''), '{}');
    stopped jsonb;
begin
    with recursive lane as (
        select first.*, 1 as number from unnest(p_names) as n (name)
        cross join lateral (
            select j.subscription, j.generation, j.queue, num_nonnulls(j.workspace_id) as tenanted
            from "outrider".job as j
            where j.subscription = n.name and "outrider".claimable(j)
              and (j.generation, j.queue, num_nonnulls(j.workspace_id))
                  > (coalesce((after -> n.name ->> 0)::bigint, -9223372036854775808), coalesce(after -> n.name ->> 1, ''),
                     coalesce((after -> n.name ->> 2)::integer, 0))
            order by j.generation, j.queue, num_nonnulls(j.workspace_id) limit 1) as first
        union all
        select next.*, lane.number + 1 from lane
        cross join lateral (
            select j.subscription, j.generation, j.queue, num_nonnulls(j.workspace_id) as tenanted
            from "outrider".job as j
            where j.subscription = lane.subscription and "outrider".claimable(j)
              and (j.generation, j.queue, num_nonnulls(j.workspace_id)) > (lane.generation, lane.queue, lane.tenanted)
            order by j.generation, j.queue, num_nonnulls(j.workspace_id) limit 1) as next
        where lane.number < 500
    )
    select coalesce(array_agg(row(l.subscription, l.generation, l.queue, l.tenanted)::"outrider".lane) filter (
               where (p_queues is null or l.queue = any (p_queues))
                 and (l.generation = p_generation
                      or not p_strict and not "outrider".has_workers(l.subscription, l.generation, l.queue))), '{}'),
           jsonb_object_agg(l.subscription, jsonb_build_array(l.generation, l.queue, l.tenanted)) filter (where l.number = 500)
    into lanes, stopped
    from lane as l;
    partly := stopped is not null or after <> '{}';
    if partly then
        perform set_config('outrider.lanes', coalesce(stopped::text, ''), false);
    end if;
end
$$;

CREATE FUNCTION outrider.late_transactions(p_inflight pg_snapshot, p_horizon xid8, p_now pg_snapshot, p_floor bigint, p_upto bigint) RETURNS SETOF xid8
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if pg_snapshot_xmin(p_inflight) < pg_snapshot_xmax(p_inflight) then
        return query
        select listed.tx
        from (select pg_snapshot_xip(p_inflight) as tx) as listed,
             -- Not EXISTS, which the planner would turn into a join that reads all their events.
             lateral (select from "outrider".outbox as o
                      where (o.tx, o.seq) > (listed.tx, p_floor) and (o.tx, o.seq) <= (listed.tx, p_upto)
                        and o.seq > p_floor and o.seq <= p_upto
                      order by o.tx, o.seq limit 1) as one
        where listed.tx < p_horizon and pg_visible_in_snapshot(listed.tx, p_now);
    end if;

    -- A snapshot's xmax is one past the newest *finished* transaction: running ones above it are not in its list.
    if pg_snapshot_xmax(p_inflight) < p_horizon then
        return query
        with recursive above as (
            (select o.tx from "outrider".outbox as o
             where o.tx >= pg_snapshot_xmax(p_inflight) and o.tx < p_horizon and o.seq > p_floor and o.seq <= p_upto
             order by o.tx limit 1)
            union all
            select (select o.tx from "outrider".outbox as o
                    where o.tx > above.tx and o.tx < p_horizon and o.seq > p_floor and o.seq <= p_upto
                    order by o.tx limit 1)
            from above
            where above.tx is not null
        )
        select above.tx from above where above.tx is not null;
    end if;
end
$$;

CREATE FUNCTION outrider.lease(p_places tid[], p_worker uuid, p_moment timestamp with time zone) RETURNS SETOF outrider.claimed
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $_$
#variable_conflict use_column
declare
    token bigint := nextval('"outrider".lease_token');
    first bigint;
    last  bigint;
    bytes bigint;
    ids   bigint[];
    fits  integer;
begin
    perform "outrider".sees_all();
    select min(d.seq), max(d.seq), sum("outrider".stored_at_most(d.payload)) into first, last, bytes
    from unnest(p_places) as q (place) join "outrider".job as d on d.ctid = q.place;
    if cardinality(p_places) > 1 and (first is not null or bytes >= "outrider".batch_bytes()) then
        select sum(case when d.payload is not null then "outrider".stored_at_most(d.payload) else (
                       select "outrider".stored_at_most(o.payload) from "outrider".outbox as o
                       where o.seq = d.seq and o.seq between first and last limit 1) end),
               array_agg(d.id order by q.n)
        into bytes, ids
        from unnest(p_places) with ordinality as q (place, n) join "outrider".job as d on d.ctid = q.place;
        if bytes >= "outrider".batch_bytes() then
            fits := "outrider".fitting($payloads$
                select coalesce(d.payload, o.payload)
                from unnest($1) with ordinality as q (id, n) join "outrider".job as d on d.id = q.id
                left join lateral (select o.payload from "outrider".outbox as o where o.seq = d.seq limit 1) as o
                    on d.payload is null
                order by q.n$payloads$, ids);
            if fits is not null then
                p_places := p_places[1 : fits];
            end if;
        end if;
    end if;
    return query
    with leased as (
        update "outrider".job as d
        set status = 'in_flight', attempts = d.attempts + 1, locked_by = p_worker, locked_at = p_moment,
            lease_token = token, lease_expires_at = p_moment + coalesce(s.lease, interval '5 minutes')
        from unnest(p_places) as q (place), "outrider".subscription as s
        where d.ctid = q.place and s.name = d.subscription
        returning d.*, "outrider".claim_at(d), extract(epoch from d.lease_expires_at - p_moment)::double precision as lease
    )
    select null::jsonb, t.id, t.lease_token, t.subscription, t.lease, t.attempts, t.crashes, t.queue, t.claim_at,
           t.event_id, coalesce(t.event_type, t.subscription), coalesce(o.event_version, t.event_version),
           coalesce(o.occurred_at, t.created_at), coalesce(o.source, t.source), t.generation, coalesce(o.workspace_id, t.workspace_id),
           coalesce(o.aggregate_id, t.job_key),
           case when sum(texts.bytes) over () <= 262144 then texts.payload end,
           case when sum(texts.bytes) over () <= 262144 then texts.trace end,
           case when o.seq is not null then jsonb_build_object(
               'seq', o.seq, 'target', o.target, 'content_class', o.content_class, 'channel', o.channel,
               'aggregate_kind', o.aggregate_kind, 'entity_version', o.entity_version,
               'idempotency_key', coalesce(o.idempotency_key, o.id::text), 'origin', o.origin) end
    from leased as t
    left join lateral (
        select o.* from "outrider".outbox as o where o.seq = t.seq and o.seq between first and last limit 1) as o
        on t.seq is not null
    cross join lateral (
        select made.*, coalesce(octet_length(made.payload), 0) + coalesce(octet_length(made.trace), 0) as bytes
        from (select "outrider".as_text(coalesce(t.payload, o.payload)) as payload,
                     nullif("outrider".as_text(coalesce(o.trace_context, t.trace_context)), '') as trace offset 0) as made) as texts
    order by t.claim_at, t.id;
end
$_$;

CREATE FUNCTION outrider.lock_cursor(p_subscription text, p_partition integer, p_generation bigint, p_armed bigint, OUT outcome text, OUT locked outrider.cursor, OUT drawn bigint, OUT home bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    cur "outrider".cursor;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'take needs a READ COMMITTED transaction, this one is %', current_setting('transaction_isolation')
            using errcode = 'OR001', hint = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    end if;
    if pg_current_xact_id_if_assigned() is not null then
        raise 'take must come before any write in its transaction'
            using errcode = 'OR001', hint = 'Take once, at the start of a new transaction.';
    end if;

    drawn := coalesce(pg_sequence_last_value('"outrider".outbox_seq'::regclass), 0);
    home := "outrider".log_home();
    for cur in
        select c.* from "outrider".cursor as c
        where c.subscription = p_subscription and c.generation = p_generation
          and (p_partition is null or c.partition = p_partition)
        order by random()
    loop
        -- Ask the sequence again: another session may have read further since.
        if cur.seq > drawn and cur.seq > coalesce(pg_sequence_last_value('"outrider".outbox_seq'::regclass), 0) then
            raise 'the cursor of "%" is at position %, ahead of the log, which has used %', p_subscription, cur.seq, drawn
                using errcode = 'OR003',
                      hint = 'The log was restored without its sequence, or the sequence was set back.';
        end if;
        if cur.open_until > now() and p_armed is null then
            outcome := coalesce(nullif(outcome, 'idle'), 'open');
            continue;
        end if;
        if cur.cluster = home and cur.horizon < pg_snapshot_xmax(pg_current_snapshot())
           and cur.seq >= drawn and cur.owing is null and p_armed is null then
            if not exists (select from "outrider".delivery as d
                           where d.subscription = p_subscription and d.generation = p_generation
                             and d.partition = cur.partition and d.status = 'pending' and d.head and d.reached
                             and d.run_at <= now())
               and not exists (select from "outrider".late_transactions(
                                   cur.inflight, cur.horizon, pg_current_snapshot(), cur.floor, cur.seq)) then
                outcome := coalesce(outcome, 'idle');
                continue;
            end if;
        end if;
        select c.* into locked from "outrider".cursor as c
        where c.subscription = p_subscription and c.generation = p_generation and c.partition = cur.partition
        for update skip locked;
        if found then
            outcome := 'taken';
            return;
        end if;
        outcome := 'busy';
    end loop;
    if outcome is null then
        raise 'there is no cursor for subscription "%", generation %, partition %',
            p_subscription, p_generation, coalesce(p_partition::text, 'any')
            using errcode = 'OR002', hint = coalesce(
                (select format('Its partitions are 0 to %s.', s.partitions - 1)
                 from "outrider".subscription as s where s.name = p_subscription),
                'Register the subscription first: app.migrate() or outrider migrate --app.');
    end if;
end
$$;

CREATE FUNCTION outrider.log_holders() RETURNS text
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select 'the log is in use by ' || coalesce(string_agg(held.who, ', ' order by held.who), 'somebody who is gone now')
    from (select distinct case when l.pid is null then 'a prepared transaction' else 'process ' || l.pid end as who
          from pg_locks as l
          where l.relation = '"outrider".outbox'::regclass and l.granted and l.pid is distinct from pg_backend_pid()
            and l.database = (select d.oid from pg_database as d where d.datname = current_database())
          limit 5) as held
$$;

CREATE FUNCTION outrider.log_home() RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return (select hashint8extended((pg_control_system()).system_identifier, m.xmin::text::bigint)
            from "outrider".migration as m order by m.version limit 1);
end
$$;

CREATE FUNCTION outrider.make_counter() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
begin
    if tg_op = 'INSERT' then
        execute format('create sequence if not exists "outrider".takes_%s', new.id);
        execute format('create sequence if not exists "outrider".excused_%s', new.id);
        execute format('grant select on sequence "outrider".takes_%1$s, "outrider".excused_%1$s to public', new.id);
    else
        execute format('drop sequence if exists "outrider".takes_%1$s, "outrider".excused_%1$s', old.id);
    end if;
    return null;
end
$_$;

CREATE FUNCTION outrider.make_due(p_job outrider.job) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update "outrider".job as d set run_at = least(d.run_at, clock_timestamp()) where d.id = p_job.id;
    perform "outrider".notify("outrider".generation_channel(p_job.generation), p_job.subscription);
end
$$;

CREATE FUNCTION outrider.make_jobs(p_subscription text, p_seqs bigint[], p_queue text, p_priority integer, OUT made bigint, OUT held bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '20ms'
    AS $$
#variable_conflict use_column
declare
    rest   bigint[] := p_seqs;
    many   integer := cardinality(p_seqs);  -- all at once; if one is held, half as many, and so on
    seqs   bigint[];
    number bigint;
    keyed  bigint[];
begin
    made := 0;
    held := '{}';
    while rest <> '{}' loop
        seqs := rest[1:many];
        begin
            with inserted as (
                insert into "outrider".job (
                    subscription, generation, seq, event_id, event_type, run_at, queue, priority, job_key, unique_key, workspace_id)
                select p_subscription, o.generation, o.seq, o.id, o.event_type, clock_timestamp(), p_queue, p_priority,
                       o.aggregate_id,
                       case when o.idempotency_key <> o.id::text then o.event_type || ':' || o.idempotency_key end, o.workspace_id
                from "outrider".outbox as o
                where o.seq = any (seqs) and o.seq >= seqs[1] and o.seq <= seqs[cardinality(seqs)]
                  and not exists (
                      select from "outrider".event_handled as h
                      where h.handler_name = p_subscription
                        and h.idempotency_key = "outrider".receipt_key(
                            o.workspace_id, o.event_type, nullif(o.idempotency_key, o.id::text), o.id))
                order by o.seq
                on conflict do nothing
                returning id, generation, unique_key
            ),
            poked as (
                select "outrider".notify("outrider".generation_channel(g.generation), p_subscription)
                from (select distinct inserted.generation from inserted) as g
            )
            select (select count(*) from inserted) + 0 * (select count(*) from poked),
                   (select array_agg(inserted.id) from inserted where inserted.unique_key is not null)
            into number, keyed;
            -- A job that was settled while the statement above ran left a receipt that its snapshot did not show.
            if keyed is not null then
                delete from "outrider".job as d
                where d.id = any (keyed) and exists (
                    select from "outrider".event_handled as h
                    where h.handler_name = p_subscription
                      and h.idempotency_key = "outrider".in_workspace(d.workspace_id, d.unique_key));
                if found then
                    number := number - (select cardinality(keyed) - count(*) from "outrider".job as d where d.id = any (keyed));
                end if;
            end if;
            made := made + number;
            many := 2 * cardinality(seqs);
        exception when lock_not_available then
            perform set_config('lock_timeout', '1ms', true);
            if cardinality(seqs) > 1 then
                many := cardinality(seqs) / 2;
                continue;
            end if;
            held := held || rest[1];
            many := 1;
        end;
        rest := rest[cardinality(seqs) + 1:];
    end loop;
end
$$;

CREATE FUNCTION outrider.make_segment(p_first bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    made text := 'outbox_from_' || p_first;
begin
    execute format(
        'create table "outrider".%I (like "outrider".outbox including defaults including constraints including generated '
        'including indexes including statistics including storage including compression) '
        'with (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_insert_threshold = 10000, '
        'autovacuum_freeze_min_age = 0)', made);
    -- Where tenants are isolated, only the owner may read it directly.
    if (select c.relrowsecurity from pg_class as c where c.oid = '"outrider".outbox'::regclass) then
        execute format('alter table "outrider".%I enable row level security', made);
    end if;
    return made;
end
$$;

CREATE FUNCTION outrider.move_generation(p_from bigint, p_to bigint, p_by text DEFAULT NULL::text, p_subscription text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS TABLE(subscription text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '10s'
    AS $$
#variable_conflict use_column
begin
    perform "outrider".sees_all(true);
    if p_to < 0 then
        raise 'generation % does not exist', p_to using errcode = 'OR006';
    end if;
    -- From the floor on: what transactions left that finished late is above it.
    if exists (select from "outrider".outbox as o
               where o.generation = p_from and o.seq > (
                   select min(c.floor) from "outrider".cursor as c
                   where c.subscription = p_subscription and c.generation = 0)) then
        perform "outrider".open_generation(p_subscription, p_from);
    end if;
    perform from "outrider".cursor as c
    where c.generation = p_from and c.subscription = coalesce(p_subscription, c.subscription)
    order by c.subscription, c.generation, c.partition for update;
    return query
    with moved as (
        update "outrider".cursor as c set served_by = nullif(p_to, p_from)
        where c.generation = p_from and c.subscription = coalesce(p_subscription, c.subscription)
        returning c.subscription
    ),
    rewritten as (
        update "outrider".job as j set generation = p_to
        where j.generation = p_from and j.status = 'pending' and j.subscription = coalesce(p_subscription, j.subscription)
          and p_to <> p_from
        returning j.subscription
    ),
    changed as (
        select moved.subscription, null::bigint as jobs from moved group by moved.subscription
        union all
        select rewritten.subscription, count(*) from rewritten group by rewritten.subscription
    ),
    told as (
        insert into "outrider".audit (by, action, subscription, details)
        select "outrider".signed(p_by), 'move_generation', changed.subscription,
               jsonb_strip_nulls(jsonb_build_object(
                   'from', p_from, 'to', p_to, 'jobs', changed.jobs, 'reason', left(p_reason, 2000)))
        from changed
    )
    select changed.subscription from changed order by 1;
    perform "outrider".wake_jobs(array(
        select s.name from "outrider".subscription as s where s.kind = 'job' and s.name = coalesce(p_subscription, s.name)));
end
$$;

CREATE FUNCTION outrider.narrow(p_name text, p_types text[], p_force boolean DEFAULT false, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    AS $$
declare
    told   text := array_to_string(p_types, ', ');
    wanted text[];
    parked bigint;
    lost   bigint;
begin
    perform "outrider".hold_subscription(p_name);
    wanted := (select s.event_types from "outrider".subscription as s where s.name = p_name);
    if cardinality(p_types) > 0 is not true then
        raise 'no event type to remove from % was named', p_name using errcode = 'OR010';
    end if;
    if not coalesce(p_types <@ wanted, false) then
        raise '% does not want %; it wants %', p_name,
            (select string_agg(t, ', ') from unnest(p_types) as t where t <> all (coalesce(wanted, '{}'))),
            coalesce((select nullif(string_agg(t, ', ' order by t), '') from unnest(wanted) as t), 'every type')
            using errcode = 'OR010';
    end if;
    if wanted <@ p_types then
        raise '% would have no event types left: use `outrider subscription retire %`', p_name, p_name using errcode = 'OR010';
    end if;
    parked := (select count(*) from "outrider".owed as d
               where d.subscription = p_name and d.status in ('pending', 'in_flight') and d.event_type = any (p_types));
    if parked > 0 then
        raise '% events of % wait for a retry in %: let code that knows these types handle them first', parked, told, p_name
            using errcode = 'OR010';
    end if;
    lost := (select u.events from "outrider".unread(p_name) as u);
    update "outrider".subscription as s
    set event_types = array(select kept.event_type from unnest(s.event_types) as kept (event_type)
                            where not kept.event_type = any (p_types) order by 1)
    where s.name = p_name;
    lost := lost - (select u.events from "outrider".unread(p_name) as u);
    if lost > 0 and p_force is not true then
        raise '% has % unread events of %: let code that knows these types handle them first, or use --force --yes to lose them',
            p_name, lost || case when lost = 10000 then ' or more' else '' end, told using errcode = 'OR010';
    end if;
    perform "outrider".note('narrow', p_by, p_reason, p_name, null, jsonb_build_object('types', p_types, 'lost', lost));
    return lost;
end
$$;

CREATE FUNCTION outrider.next_retry(p_subscription text, p_generation bigint) RETURNS double precision
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return (
        select extract(epoch from min(greatest(next.run_at, case when c.open_until > now() then c.open_until end)) - now())
        from "outrider".cursor as c cross join lateral (
            select min(d.run_at) as run_at from "outrider".delivery as d
            where d.subscription = p_subscription and d.generation = p_generation and d.partition = c.partition
              and d.status = 'pending' and d.head and d.reached) as next
        where c.subscription = p_subscription and c.generation = p_generation);
end
$$;

CREATE FUNCTION outrider.note(p_action text, p_by text, p_reason text, p_subscription text DEFAULT NULL::text, p_event_id uuid DEFAULT NULL::uuid, p_details jsonb DEFAULT '{}'::jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into "outrider".audit (role, by, action, subscription, event_id, details)
    values (session_user, "outrider".signed(p_by), p_action, p_subscription, p_event_id,
            p_details || case when p_reason is null then '{}' else jsonb_build_object('reason', left(p_reason, 2000)) end);
end
$$;

CREATE FUNCTION outrider.note_adoption(p_subscription text, p_stream text, p_before text, p_position text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform "outrider".relay_only(p_subscription);
    perform "outrider".note('adopt_stream', p_by, p_reason, p_subscription, null, jsonb_build_object(
        'stream', left(p_stream, 255), 'before', left(p_before, 255), 'position', left(p_position, 255)));
end
$$;

CREATE FUNCTION outrider.note_export(p_workspace_id text, p_kind text, p_subject text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text, p_audit bigint DEFAULT NULL::bigint, p_events bigint DEFAULT NULL::bigint, p_jobs bigint DEFAULT NULL::bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
declare
    entry bigint;
begin
    perform "outrider".sees_all(true);
    perform "outrider".refuse_nobody(p_workspace_id, p_kind, p_subject);
    if p_audit is null then
        insert into "outrider".audit (role, by, action, details)
        values (session_user, "outrider".signed(p_by), 'export', jsonb_strip_nulls(jsonb_build_object(
            'reason', left(p_reason, 2000), 'workspace', left(p_workspace_id, 255), 'kind', left(p_kind, 255),
            'subject', left(p_subject, 512))))
        returning id into entry;
        return entry;
    end if;
    update "outrider".audit as a
    set details = a.details || jsonb_build_object('events', p_events, 'jobs', p_jobs, 'finished_at', clock_timestamp())
    where a.id = p_audit and a.action = 'export' and a.role = session_user and not a.details ? 'finished_at'
      and p_events >= 0 and p_jobs >= 0 and (a.details ->> 'workspace', a.details ->> 'kind', a.details ->> 'subject')
          is not distinct from (left(p_workspace_id, 255), left(p_kind, 255), left(p_subject, 512))
    returning a.id into entry;
    if entry is null then
        raise 'audit entry % is not of this export', p_audit using errcode = 'OR006';
    end if;
    return entry;
end
$$;

CREATE FUNCTION outrider.note_segments() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    drawn bigint := coalesce(pg_sequence_last_value('"outrider".outbox_seq'::regclass), 0);
begin
    insert into "outrider".segment as s (name, first_seq, last_seq)
    select c.relname, coalesce(bound[1]::bigint, 0), bound[2]::bigint - 1
    from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
    cross join regexp_match(pg_get_expr(c.relpartbound, c.oid),
                            'FROM [(](?:''?([0-9]+)''?|MINVALUE)[)] TO [(](?:''?([0-9]+)''?|MAXVALUE)[)]') as bound
    where i.inhparent = '"outrider".outbox'::regclass
    on conflict (name) do update
    set first_seq = excluded.first_seq, last_seq = excluded.last_seq, detached_at = null
    where (s.first_seq, s.last_seq, s.detached_at) is distinct from (excluded.first_seq, excluded.last_seq, null);

    delete from "outrider".segment as s
    where case when s.detached_at is null
               then not exists (select from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
                                where i.inhparent = '"outrider".outbox'::regclass and c.relname = s.name)
               else to_regclass(format('"outrider".%I', s.name)) is null end;

    update "outrider".segment as s
    set begun_at = coalesce(s.begun_at, clock_timestamp()),
        closed_at = case when s.last_seq <= drawn then coalesce(s.closed_at, clock_timestamp()) end
    where greatest(s.first_seq, 1) <= drawn
      and (s.begun_at is null or (s.closed_at is null) <> (s.last_seq > drawn or s.last_seq is null));
end
$$;

CREATE FUNCTION outrider.notify(p_channel text, p_kind text) RETURNS void
    LANGUAGE sql
    RETURN CASE WHEN ((current_setting('outrider.notify'::text, true) IS DISTINCT FROM 'off'::text) AND (pg_notification_queue_usage() < (0.9)::double precision)) THEN CASE WHEN CASE WHEN (p_channel ~~ 'outbox\_gen\_%\_%'::text) THEN (pg_notify('outbox_classes'::text, "left"(p_kind, 255)) IS NULL) ELSE NULL::boolean END THEN NULL::void ELSE pg_notify(p_channel, "left"(p_kind, 255)) END ELSE NULL::void END;

CREATE FUNCTION outrider.obstacle(p_cursor outrider.cursor, p_subscription outrider.subscription, p_knows text[], p_armed bigint, p_first_seq bigint) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_subscription.paused_at is not null
       or exists (select from "outrider".setting as s where s.name = 'paused' and s.value <> 0) then
        return 'paused';
    elsif not p_subscription.event_types <@ p_knows then
        return 'unknown';
    elsif p_cursor.open_until > now() and p_armed is null then
        return 'open';
    elsif p_first_seq <= p_cursor.seq and p_armed is null then
        return case when not exists (
            -- The first parked event was late, and has not been read again since it failed: read on.
            select from "outrider".delivery as d
            where d.subscription = p_cursor.subscription and d.seq = p_first_seq and not d.reached) and not exists (
            select from "outrider".delivery as d
            where d.subscription = p_cursor.subscription and d.generation = p_cursor.generation
              and d.partition = p_cursor.partition and d.status = 'pending' and d.head and d.reached and d.run_at <= now())
            then 'waiting' end;
    end if;
    return null;
end
$$;

CREATE FUNCTION outrider.open_generation(p_subscription text, p_generation bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '5s'
    AS $$
declare
    lines text[];
begin
    perform "outrider".sees_all(true);
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'open_generation needs a READ COMMITTED transaction' using errcode = 'OR001';
    end if;
    if p_generation <= 0 or exists (select from "outrider".cursor as c
                                    where c.subscription = p_subscription and c.generation = p_generation) then
        return false;
    end if;
    perform from "outrider".subscription as s where s.name = p_subscription and s.kind = 'handler' for no key update;
    if not found then
        return false;
    end if;
    if 64 <= (select count(distinct c.generation) from "outrider".cursor as c
              where c.subscription = p_subscription and c.generation <> 0) then
        raise '% has 64 open generations, and % would be one more', p_subscription, p_generation
            using errcode = 'OR011', hint = 'Generations without workers are folded once they are read to the end: outrider generations';
    end if;
    perform from "outrider".cursor as c where c.subscription = p_subscription and c.generation = 0
    order by c.partition for update;
    insert into "outrider".cursor (
        subscription, generation, partition,
        seq, floor, inflight, horizon, owing, owed_after, mark_seq, mark_xid, cluster)
    select c.subscription, p_generation, c.partition,
           c.seq, c.floor, c.inflight, c.horizon, c.owing, c.owed_after, c.mark_seq, c.mark_xid, c.cluster
    from "outrider".cursor as c where c.subscription = p_subscription and c.generation = 0
    on conflict do nothing;
    if not found then
        return false;
    end if;
    with moved as (
        update "outrider".delivery as d set generation = p_generation, head = d.ordering_key is null and d.head
        from "outrider".outbox as o
        where d.subscription = p_subscription and d.generation = 0 and o.seq = d.seq and o.generation = p_generation
        returning d.ordering_key
    )
    select array_agg(distinct moved.ordering_key) filter (where moved.ordering_key is not null) into lines from moved;
    perform "outrider".promote(p_subscription, 0, lines);
    perform "outrider".promote(p_subscription, p_generation, lines);
    return true;
end
$$;

CREATE FUNCTION outrider.operates() RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select exists (select from pg_roles as r
                   where pg_has_role(session_user, r.oid, 'member')
                     and has_function_privilege(r.oid, '"outrider".withdraw(uuid, text, text)', 'execute'))
$$;

CREATE FUNCTION outrider.ordering_key(p_ordering text, p_workspace_id text, p_aggregate_id text) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE p_ordering WHEN 'total'::text THEN ''::text WHEN 'key'::text THEN outrider.in_workspace(p_workspace_id, p_aggregate_id) ELSE NULL::text END;

CREATE FUNCTION outrider.outbox_replay(p_event_id uuid, p_new_generation bigint DEFAULT NULL::bigint, p_replayed_by text DEFAULT NULL::text, p_subscription text DEFAULT NULL::text, p_force boolean DEFAULT false, p_payload jsonb DEFAULT NULL::jsonb, p_reason text DEFAULT NULL::text) RETURNS TABLE(subscription text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '10s'
    AS $$
#variable_conflict use_column
declare
    names    text[];
    outcomes text[];
begin
    perform "outrider".sees_all(true);
    if p_force and p_subscription is null then
        raise 'to replay an event that was handled, name the subscription' using errcode = 'OR006';
    end if;
    if exists (select from "outrider".outbox as o where o.id = p_event_id and o.erased_at is not null) then
        subscription := p_subscription;
        outcome := 'erased';
        return next;
        return;
    end if;
    if p_force then
        perform from "outrider".cursor as c where c.subscription = p_subscription
        order by c.generation, c.partition for update;
        with handled as materialized (
            select s.name, s.kind, s.ordering, place.generation, place.partition, o.seq, o.id, o.event_type, o.workspace_id,
                   o.aggregate_id, h.failure_history
            from "outrider".outbox as o
            join "outrider".subscription as s on s.name = p_subscription
            join "outrider".event_handled as h
                on h.handler_name = s.name
               and h.idempotency_key = "outrider".receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
            cross join lateral (
                select c.generation, c.partition from "outrider".cursor as c
                where c.subscription = s.name and c.generation in (0, o.generation)
                  and c.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (s.partitions - 1)
                order by c.generation desc limit 1) as place
            where o.id = p_event_id
        ),
        job as (
            insert into "outrider".job (
                subscription, generation, seq, event_id, event_type, status, run_at, failure_history, queue, job_key, workspace_id)
            select h.name, h.generation, h.seq, h.id, h.event_type, 'discarded', now(), h.failure_history, 'default',
                   h.aggregate_id, h.workspace_id
            from handled as h where h.kind = 'job'
            on conflict (subscription, seq) where seq is not null do nothing
        )
        insert into "outrider".delivery (
            subscription, generation, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at,
            failure_history, workspace_id)
        select h.name, h.generation, h.partition, h.seq, h.id, h.event_type,
               "outrider".ordering_key(h.ordering, h.workspace_id, h.aggregate_id), 'discarded', false, true, now(),
               coalesce(h.failure_history, '[]'), h.workspace_id
        from handled as h where h.kind = 'handler'
        on conflict (subscription, seq) do nothing;
    end if;
    -- What is gone once we hold the lock was handled meanwhile, and its receipt is found below.
    select array_agg(replayed.subscription), array_agg(replayed.outcome) into names, outcomes
    from "outrider".replay(
        array(select d.id from "outrider".owed as d
              where d.id = any ("outrider".owed_of(p_event_id)) and d.subscription = coalesce(p_subscription, d.subscription)
                and (d.status = 'failed' or (p_force and d.status = 'discarded'))
              order by d.subscription, d.seq),
        p_replayed_by, p_new_generation, p_force, p_payload, p_reason) as replayed
    where replayed.subscription is not null;
    return query
    with found as materialized (
        select told.subscription, told.outcome from unnest(names, outcomes) as told (subscription, outcome)
    ),
    handled as materialized (
        select distinct s.name as subscription, 'skipped_handled' as outcome
        from "outrider".subscription as s
        join "outrider".outbox as o on o.id = p_event_id
        join "outrider".event_handled as h
            on h.handler_name = s.name
           and h.idempotency_key = "outrider".receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
        where s.name = coalesce(p_subscription, s.name) and s.kind <> 'inbox'
          and not exists (select from found where found.subscription = s.name)
    )
    select found.subscription, found.outcome from found
    union all
    select handled.subscription, handled.outcome from handled
    union all
    select p_subscription, 'not_found' where not exists (select from found) and not exists (select from handled)
    order by 1;
end
$$;

CREATE FUNCTION outrider.overdue_rollups() RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select r.name from "outrider".rollup as r
    where r.uninstalled_at is null
      and (r.scheduler = 'worker' or not exists (select from pg_extension where extname = 'pg_cron'))
      and coalesce(r.ticked_at, r.installed_at) not between clock_timestamp() - 2 * r.every and clock_timestamp()
    order by r.name
$$;

CREATE FUNCTION outrider.owed_of(p_id uuid) RETURNS bigint[]
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
select array(
    select d.id from "outrider".delivery as d where d.event_id = p_id
    union all
    select j.id from "outrider".job as j where j.event_id = p_id and j.lease_token is null
    union all
    select j.id from "outrider".job as j where j.event_id = p_id and j.status = 'in_flight')
$$;

CREATE FUNCTION outrider.owes(p_cursor outrider.cursor, p_first bigint, p_last bigint) RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    finished pg_snapshot := case
        -- Restored from elsewhere, where all its transactions are over.
        when p_cursor.cluster <> (select "outrider".log_home())
             or p_cursor.horizon >= pg_snapshot_xmax(pg_current_snapshot())
        then '9223372036854775807:9223372036854775807:'::pg_snapshot else pg_current_snapshot() end;
begin
    return exists (select from "outrider".outbox as o
                   where o.seq > greatest(p_cursor.seq, p_first - 1) and o.seq <= p_last)
        or exists (select from unnest(p_cursor.owing) as owing (tx),
                   lateral (select from "outrider".outbox as o
                            where (o.tx, o.seq) > (owing.tx, greatest(p_cursor.owed_after, p_first - 1))
                              and (o.tx, o.seq) <= (owing.tx, least(p_cursor.seq, p_last))
                              and o.seq between p_first and p_last
                            order by o.tx, o.seq limit 1) as one)
        or exists (select from "outrider".late_transactions(
                       p_cursor.inflight, p_cursor.horizon, finished, greatest(p_cursor.floor, p_first - 1),
                       least(p_cursor.seq, p_last)));
end
$$;

CREATE FUNCTION outrider.park(p_subscription text, p_cursor bigint, p_failed jsonb, p_armed bigint DEFAULT NULL::bigint, p_worker text DEFAULT NULL::text) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    cur   "outrider".cursor;
    sub   "outrider".subscription;
    place record;
    lines text[];
    told  bigint[];
begin
    perform "outrider".sees_all();
    -- Before the wait for the cursor: others that take it meanwhile, fail and wait too would look like deaths.
    perform "outrider".count_take(p_cursor, 0, 1);
    if p_failed is not null then
        -- Find the cursor that has the event now: its generation may have been opened or folded, or the partitions doubled.
        loop
            select s.* into strict sub from "outrider".subscription as s where s.name = p_subscription;
            select coalesce(d.generation, own.generation, 0) as generation,
                   coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1) as partition
            into strict place
            from "outrider".outbox as o
            left join "outrider".delivery as d on d.subscription = p_subscription and d.seq = o.seq
            left join lateral (select c.generation from "outrider".cursor as c
                               where c.subscription = p_subscription and c.generation = o.generation limit 1) as own on true
            where o.seq = (p_failed -> 0 ->> 'seq')::bigint;
            exit when (cur.generation, cur.partition) = (place.generation, place.partition);
            select c.* into cur from "outrider".cursor as c
            where c.subscription = p_subscription and c.generation = place.generation and c.partition = place.partition
            for update;
        end loop;
    end if;
    -- After the cursor's lock: everybody locks the two in this order.
    if p_armed is not null then
        update "outrider".delivery as d set crashes = d.crashes - 1, run_at = now()
        where d.id = p_armed and d.status = 'pending' and d.suspect and d.crashes > 0;
    end if;
    if p_failed is null then
        return '{}';
    end if;

    with failed as materialized (
        select f.* from jsonb_to_recordset(p_failed) as f (
            seq bigint, attempt integer, delay double precision, code text, message text, traceback text, counted boolean,
            dead boolean, batch text)
    ),
    again as (
        update "outrider".delivery as d
        set attempts        = d.attempts + f.counted::integer,
            run_at          = now() + f.delay * interval '1 second',
            status          = case when f.dead then 'failed' else d.status end,
            head            = d.head and not f.dead,
            suspect         = false,
            crashes         = 0,
            buried_at       = case when f.dead then now() end,
            last_error_code = f.code,
            last_error      = f.message,
            last_traceback  = left(f.traceback, 4096),
            first_failed_at = coalesce(d.first_failed_at, now()),
            -- Keep the newest 100.
            failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                    else d.failure_history end)
                              || "outrider".failure(d.cycle, d.attempts + f.counted::integer, f.code, f.message, p_worker, f.batch)
        from failed as f
        where d.subscription = p_subscription and d.seq = f.seq and d.status = 'pending' and d.attempts = f.attempt - 1
          and (f.batch is null or not d.failure_history @> jsonb_build_array(
                   jsonb_build_object('batch', f.batch, 'worker', p_worker)))
        returning d.seq, d.ordering_key
    ),
    fresh as (
        insert into "outrider".delivery (
            subscription, generation, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at,
            attempts, buried_at, last_error_code, last_error, last_traceback, first_failed_at, failure_history, workspace_id)
        select p_subscription, cur.generation,
               coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1), o.seq, o.id, o.event_type,
               lined.line, case when f.dead then 'failed' else 'pending' end, not f.dead and lined.line is null, false,
               now() + f.delay * interval '1 second', f.counted::integer,
               case when f.dead then now() end, f.code, f.message, left(f.traceback, 4096), now(),
               jsonb_build_array("outrider".failure(1, f.counted::integer, f.code, f.message, p_worker, f.batch)), o.workspace_id
        from failed as f
        cross join lateral (select o.* from "outrider".outbox as o where o.seq = f.seq limit 1) as o
        cross join lateral (
            select "outrider".ordering_key(sub.ordering, o.workspace_id, o.aggregate_id) as line) as lined
        where f.attempt = 1
          and not exists (
              select from "outrider".event_handled as h
              where h.handler_name = p_subscription
                and h.idempotency_key = "outrider".receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id))
          -- Not if it was withdrawn, or its type removed, while its batch held the cursor: nobody will read it again.
          and not exists (select from "outrider".withdrawal as w where w.seq = f.seq)
          and "outrider".concerns(o, sub)
        on conflict (subscription, seq) do nothing
        returning seq, ordering_key
    ),
    parked as (
        select again.seq, again.ordering_key from again union all select fresh.seq, fresh.ordering_key from fresh
    )
    select coalesce(array_agg(parked.seq), '{}'),
           array_agg(distinct parked.ordering_key) filter (where parked.ordering_key is not null)
    into told, lines from parked;
    perform "outrider".promote(p_subscription, cur.generation, lines);
    with broken as (
        update "outrider".cursor as c
        set failures   = c.failures + 1,
            open_until = case when c.failures + 1 >= f.trip then
                now() + interval '1 second' * least(f.probe * 2 ^ least(c.failures + 1 - f.trip, 30), f.longest) end
        from jsonb_to_recordset(p_failed) as f (
            seq bigint, trip integer, probe double precision, longest double precision, spared boolean)
        where c.id = cur.id and f.trip is not null and f.seq = any (told)
        returning f.seq, f.spared, c.open_until + interval '1 second' * f.probe as later
    )
    update "outrider".delivery as d set run_at = broken.later
    from broken where broken.spared and d.subscription = p_subscription and d.seq = broken.seq;
    return told;
end
$$;

CREATE FUNCTION outrider.pass_over(p_subscription text, p_generation bigint, p_scan integer DEFAULT 100000) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    drawn bigint := coalesce(pg_sequence_last_value('"outrider".outbox_seq'::regclass), 0);
    home  bigint := "outrider".log_home();
    sub   "outrider".subscription;
    cur   "outrider".cursor;
    place integer;
    seqs  bigint[];
    empty boolean := true;
begin
    perform "outrider".sees_all();
    if current_setting('transaction_isolation') <> 'read committed'
       or pg_current_xact_id_if_assigned() is not null then
        raise 'pass_over must be the first statement of a READ COMMITTED transaction' using errcode = 'OR001';
    end if;
    -- By delivery_due and delivery_line. A retry that is in neither has not been read: the read finds it.
    if exists (select from "outrider".delivery as d
               where d.subscription = p_subscription and d.generation = p_generation
                 and d.status = 'pending' and d.head and d.reached)
       or exists (select from "outrider".delivery as d
                  where d.subscription = p_subscription and d.generation = p_generation
                    and d.status = 'pending' and d.ordering_key is not null) then
        return false;
    end if;
    for place in
        select c.partition from "outrider".cursor as c
        where c.subscription = p_subscription and c.generation = p_generation
          and (c.seq < drawn or c.owing is not null) order by c.partition
    loop
        begin
            select c.* into cur from "outrider".cursor as c
            where c.subscription = p_subscription and c.generation = p_generation and c.partition = place
            for update skip locked;
            if not found then
                raise sqlstate 'OR000';
            end if;
            -- After the lock: doubling the partitions locks the cursors first.
            select s.* into strict sub from "outrider".subscription as s where s.name = p_subscription;
            select read.seqs into seqs from "outrider".read(cur, sub, drawn, home, 1, p_scan) as read;
            if seqs <> '{}' then
                raise sqlstate 'OR000';
            end if;
        exception when sqlstate 'OR000' then
            empty := false;
        end;
    end loop;
    return empty;
end
$$;

CREATE FUNCTION outrider.pause(p_name text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    since timestamptz;
begin
    update "outrider".subscription as s set paused_at = coalesce(s.paused_at, now()) where s.name = p_name
    returning s.paused_at into since;
    if not found then
        raise 'there is no subscription %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    perform "outrider".note('pause', p_by, p_reason, p_name, null, jsonb_build_object('since', since));
    return since;
end
$$;

CREATE FUNCTION outrider.pause_all(p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    held bigint := (select count(*) from "outrider".subscription);
begin
    update "outrider".setting as s set value = 1, updated_at = now() where s.name = 'paused' and s.value = 0;
    perform "outrider".note('pause_all', p_by, p_reason, null, null, jsonb_build_object('subscriptions', held));
    return held;
end
$$;

CREATE FUNCTION outrider.pause_schedule(p_name text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    since timestamptz;
begin
    update "outrider".schedule as s set paused_at = coalesce(s.paused_at, now()) where s.name = p_name
    returning s.paused_at into since;
    if not found then
        raise 'there is no schedule %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    perform "outrider".note('pause_schedule', p_by, p_reason, null, null,
                           jsonb_build_object('schedule', p_name, 'since', since));
    return since;
end
$$;

CREATE FUNCTION outrider.pick(p_lanes outrider.lane[], p_wanted integer) RETURNS tid[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    lanes  integer := cardinality(p_lanes);
    places tid[] := '{}';
    wanted bigint := p_wanted;
    number bigint[];
begin
    if lanes > 0 and 1 = any (array(select l.tenanted from unnest(p_lanes) as l)) then
        places := "outrider".take_turns(p_lanes, p_wanted);
    end if;
    if lanes > 1 and places = '{}' then
        -- How many of the next jobs are of each lane. Without locks, because it reads more jobs than it takes.
        with next as (
            select l.lane from unnest(p_lanes) with ordinality as l (subscription, generation, queue, tenanted, lane)
            cross join lateral (
                select "outrider".claim_at(j), j.id from "outrider".job as j
                where "outrider".in_lane(j, p_lanes[l.lane]) order by "outrider".claim_at(j), j.id limit p_wanted) as j
            order by j.claim_at, j.id limit p_wanted
        )
        select array(select count(next.lane) from generate_series(1, lanes) as l (lane)
                     left join next on next.lane = l.lane group by l.lane order by l.lane),
               (select count(*) from next)
        into number, wanted;
        with picked as materialized (
            select picked.place from unnest(number) with ordinality as share (jobs, lane)
            cross join lateral (
                select j.ctid as place from "outrider".job as j
                where "outrider".in_lane(j, p_lanes[share.lane])
                order by "outrider".claim_at(j), j.id limit share.jobs for update skip locked) as picked
            where share.jobs > 0
        )
        select array_agg(picked.place) into places from picked;
        places := coalesce(places, '{}');
    end if;
    -- The only lane; or whatever is next, if others have locked some of those above.
    if lanes > 0 and cardinality(places) < wanted then
        wanted := wanted - cardinality(places);
        places := places || array(
            select picked.place from unnest(p_lanes) as l
            cross join lateral (
                select j.ctid as place, "outrider".claim_at(j), j.id from "outrider".job as j
                where "outrider".in_lane(j, l) and j.ctid <> all (places)
                order by "outrider".claim_at(j), j.id limit wanted for update skip locked) as picked
            order by picked.claim_at, picked.id limit wanted);
    end if;
    return places;
end
$$;

CREATE FUNCTION outrider.pick_limited(p_lanes outrider.lane[], p_wanted integer, p_chosen tid[], OUT places tid[], OUT cut boolean) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    seed   bigint := (random() * 4294967296)::bigint;
    shared boolean := 1 = any (array(select l.tenanted from unnest(p_lanes) as l));
begin
    with running as materialized (
        select j.subscription, j.workspace_id, j.job_key, j.status from "outrider".job as j
        where j.subscription = any (array(select l.subscription from unnest(p_lanes) as l)) and j.status = 'in_flight'
        union all
        select j.subscription, j.workspace_id, j.job_key, j.status from "outrider".job as j where j.ctid = any (p_chosen)
    ),
    limits as materialized (
        select s.name, s.key_concurrency,
               coalesce(s.concurrency - (select count(*) from running where running.subscription = s.name), p_wanted) as room
        from "outrider".subscription as s
        where s.name = any (array(select l.subscription from unnest(p_lanes) as l))
    ),
    tenant as materialized (
        select t.lane, t.tenant from "outrider".tenants_due(p_lanes, least(64, 2 * p_wanted + 6)) as t where shared
    ),
    -- The tenants one by one; then all together, for those that tenants_due did not return.
    source as materialized (
        select l.lane, l.tenant, limits.*,
               least(limits.room, p_wanted, case when l.tenant is not null then 1 + ceil(2.0 * p_wanted / (
                   select count(distinct tenant.tenant) from tenant)) end)::integer
                   + case when limits.key_concurrency is null then 0 when l.tenant is null then 100 else 10 end as most
        from (select u as lane, null::bigint as tenant from unnest(p_lanes) as u
              union all
              select tenant.lane, tenant.tenant from tenant) as l
        join limits on limits.name = (l.lane).subscription
        where limits.room > 0 and p_wanted > 0
    ),
    locked as materialized (
        select source.name, source.room, source.key_concurrency, source.most, source.lane, source.tenant, j.*
        from source
        cross join lateral (
            select j.ctid as place, j.workspace_id, j.job_key, "outrider".claim_at(j), j.id from "outrider".job as j
            where "outrider".in_lane(j, source.lane)
            order by "outrider".claim_at(j), j.id limit source.most for update skip locked) as j
        where source.tenant is null
        union all
        select source.name, source.room, source.key_concurrency, source.most, source.lane, source.tenant, j.*
        from source
        cross join lateral (
            select j.ctid as place, j.workspace_id, j.job_key, "outrider".claim_at(j), j.id from "outrider".job as j
            where "outrider".in_turn(j, source.lane) and hashtextextended(j.workspace_id, 0) = source.tenant
            order by "outrider".claim_at(j), j.id limit source.most for update skip locked) as j
        where source.tenant is not null
    ),
    -- key_room: how many more jobs of its key may run; null = any number.
    candidate as materialized (
        select distinct on (c.id) c.*, case when c.key_concurrency is not null and c.job_key is not null
                   then c.key_concurrency - (
                       select count(*) from running
                       where running.subscription = c.name and running.job_key = c.job_key
                         and running.workspace_id is not distinct from c.workspace_id) end as key_room
        from locked as c order by c.id
    ),
    fitting as materialized (
        select c.*, case when shared then row_number() over (partition by c.workspace_id order by c.claim_at, c.id)
                   + (select count(*) from running where running.workspace_id is not distinct from c.workspace_id) end as turn,
               case when shared then hashtextextended(coalesce(c.workspace_id, ''), seed) end as lot
        from (select candidate.*, row_number() over (
                         partition by name, workspace_id, job_key order by claim_at, id) as of_key
              from candidate) as c
        where c.key_room is null or c.of_key <= c.key_room
    ),
    picked as materialized (
        select f.place, f.name, f.workspace_id, f.job_key
        from (select fitting.*, row_number() over (partition by name order by turn, lot, claim_at, id) as of_type
              from fitting) as f
        where f.of_type <= f.room
        order by f.turn, f.lot, f.claim_at, f.id limit p_wanted
    ),
    passed as materialized (
        select c.place from candidate as c
        where c.key_room <= (
                  select count(*) from picked
                  where picked.name = c.name and picked.job_key = c.job_key
                    and picked.workspace_id is not distinct from c.workspace_id)
          and not exists (select from picked where picked.place = c.place)
    ),
    set_aside as (
        update "outrider".job as j set waits_for = 'key' from passed where j.ctid = passed.place
    )
    select array(select picked.place from picked),
           exists (select from passed) and (select count(*) from picked) < p_wanted and exists (
               select from locked as l group by l.lane, l.tenant, l.most having count(*) >= l.most)
    into places, cut;
end
$$;

CREATE FUNCTION outrider.pick_suspect(p_names text[], p_generation bigint, p_queues text[], p_limited boolean, p_strict boolean, OUT places tid[], OUT held boolean) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
    places := array(
        select picked.place from unnest(p_names) as n (name)
        cross join lateral (
            select j.ctid as place, "outrider".claim_at(j), j.id from "outrider".job as j
            where j.subscription = n.name and j.status = 'pending' and j.waits_for is null and j.crashes > 0
              and (p_queues is null or j.queue = any (p_queues))
              and (j.generation = p_generation
                   or not p_strict and not "outrider".has_workers(j.subscription, j.generation, j.queue))
              and (not p_limited or "outrider".room(j.subscription, j.job_key, j.workspace_id) > 0)
            order by "outrider".claim_at(j), j.id limit 1 for update skip locked) as picked
        order by picked.claim_at, picked.id limit 1);
    held := places = '{}' and exists (
        select from unnest(p_names) as n (name)
        cross join lateral (
            select from "outrider".job as j
            where j.subscription = n.name and j.status = 'pending' and j.waits_for is null and j.crashes > 0
              and (p_queues is null or j.queue = any (p_queues))
              and (j.generation = p_generation
                   or not p_strict and not "outrider".has_workers(j.subscription, j.generation, j.queue))
              and (not p_limited or "outrider".room(j.subscription, j.job_key, j.workspace_id) > 0) limit 1) as j);
end
$$;

CREATE FUNCTION outrider.promote(p_subscription text, p_generation bigint, p_lines text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    line  text;
    first bigint;
begin
    foreach line in array coalesce(p_lines, '{}') loop
        first := (select min(d.seq) from "outrider".delivery as d
                  where d.subscription = p_subscription and d.generation = p_generation and d.ordering_key = line
                    and d.status = 'pending');
        update "outrider".delivery as d set head = false
        where d.subscription = p_subscription and d.generation = p_generation and d.ordering_key = line
          and d.status = 'pending' and d.head and d.seq <> first;
        update "outrider".delivery as d set head = true
        where d.subscription = p_subscription and d.seq = first and not d.head;
    end loop;
end
$$;

CREATE FUNCTION outrider.publish(event_type text, payload jsonb, key text DEFAULT NULL::text, idempotency_key text DEFAULT NULL::text, event_version integer DEFAULT 1, source text DEFAULT 'sql'::text, target text DEFAULT NULL::text, content_class text DEFAULT 'internal'::text, channel_class text DEFAULT NULL::text, workspace_id text DEFAULT NULL::text, aggregate_kind text DEFAULT NULL::text, entity_version bigint DEFAULT NULL::bigint, occurred_at timestamp with time zone DEFAULT NULL::timestamp with time zone, trace_context jsonb DEFAULT NULL::jsonb) RETURNS uuid
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_variable
declare
    generation bigint := coalesce(nullif(current_setting('outrider.generation', true), '')::bigint, 0);
    bytes      bigint := octet_length(nullif("outrider".as_text(payload), ''));
    allowed    bigint := (select s.value from "outrider".setting as s where s.name = 'payload_max_bytes');
    event_id   uuid := "outrider".uuid7();
begin
    if event_type is null or event_type !~ '^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)*$' then
        raise 'event type % is not lower-case words joined by dots', coalesce(quote_literal(event_type), 'NULL')
            using errcode = 'OR004';
    end if;
    if payload is null or jsonb_typeof(payload) <> 'object' then
        raise '% was not published: the payload must be a JSON object', event_type using errcode = 'OR004';
    end if;
    if (bytes <= allowed) is not true then
        raise '% was not published: its payload has % bytes, the limit is %', event_type,
            coalesce(bytes::text, 'more than 134217728'), allowed
            using errcode = 'OR004', hint = 'The setting payload_max_bytes holds the limit.';
    end if;
    if target !~ '^[a-z][a-z0-9_]*$' or channel_class !~ '^[a-z][a-z0-9_]*$' then
        raise '% was not published: target % and channel class % must be lower-case words', event_type,
            quote_nullable(target), quote_nullable(channel_class) using errcode = 'OR004';
    end if;
    if key = '' or idempotency_key = '' then
        raise '% was not published: an empty key or idempotency key', event_type
            using errcode = 'OR004', hint = 'Leave it out, or pass NULL.';
    end if;

    insert into "outrider".outbox (
        id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
        aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context)
    values (
        event_id, event_type, event_version, coalesce(occurred_at, clock_timestamp()), source, target, content_class,
        coalesce('outbox_gen_' || generation || '_' || channel_class, "outrider".generation_channel(generation)),
        generation, coalesce(workspace_id, nullif(current_setting('app.workspace_id', true), '')),
        aggregate_kind, key, entity_version, payload, idempotency_key, trace_context);
    return event_id;
end
$_$;

CREATE FUNCTION outrider.read(p_cursor outrider.cursor, p_subscription outrider.subscription, p_drawn bigint, p_home bigint, p_limit integer, p_scan integer, OUT outcome text, OUT seqs bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
declare
    cur       "outrider".cursor := p_cursor;
    q         bigint := greatest(p_drawn, cur.seq);  -- never go back: another session may have read further before we had the lock
    r         xid8 := pg_current_xact_id();
    upto      bigint := q;
    payloads  constant text := $payloads$
        select o.payload from unnest($1) with ordinality as q (seq, n)
        cross join lateral (select o.payload from "outrider".outbox as o where o.seq = q.seq limit 1) as o
        order by q.n$payloads$;
    others    bigint[];
    withdrawn boolean;
begin
    -- After the lock, under which open_generation copies the cursor of generation 0.
    select array(select distinct c.generation from "outrider".cursor as c
                 where cur.generation = 0 and c.subscription = cur.subscription and c.generation <> 0),
           exists (select from "outrider".withdrawal as w where w.seq > least(cur.seq, cur.floor, cur.owed_after))
    into others, withdrawn;

    -- Rebase after a restore. The transactions of the old home are over, and what they left is here. Their ids mean nothing from
    -- now on, except for what is owed. A transaction that advanced a cursor here has finished, so its id (horizon) is below xmax;
    -- otherwise the cursor is from elsewhere, whatever its home says. One statement, so that a rebase is exact also for a cursor
    -- that never left.
    if (cur.cluster <> p_home or cur.horizon >= pg_snapshot_xmax(pg_current_snapshot())) and cur.owing is null then
        select nullif(array(
                   select "outrider".late_transactions(
                       cur.inflight, cur.horizon, '9223372036854775807:9223372036854775807:', cur.floor, cur.seq)), '{}'),
               cur.floor, pg_current_snapshot(), "outrider".foreign_floor(pg_current_snapshot())
        into cur.owing, cur.owed_after, cur.inflight, cur.floor;
        if cur.owing is null then
            cur.owed_after := null;
        end if;
        cur.horizon := r;
        cur.mark_seq := cur.floor;
        cur.mark_xid := '0';
        cur.cluster := p_home;
    end if;

    if cur.owing is null then
        if upto > cur.seq + p_scan then
            -- Far behind: a step of p_scan positions, from the next event on.
            upto := least(upto, p_scan - 1 + coalesce((
                select o.seq from "outrider".outbox as o where o.seq > cur.seq and o.seq <= upto order by o.seq limit 1), upto));
        end if;

        with snapshot as materialized (
            select pg_current_snapshot() as now
        ),
        late as materialized (
            select o.seq, o.at_most, o.wanted
            from snapshot, "outrider".late_transactions(
                     cur.inflight, cur.horizon, snapshot.now, cur.floor, cur.seq) as finished (tx),
                 lateral (
                     select o.seq, "outrider".stored_at_most(o.payload) as at_most,
                            "outrider".wanted(o, p_subscription, cur, others, withdrawn) as wanted
                     from "outrider".outbox as o
                     -- As rows, and ordered by both: only the index on (tx, seq) will do, whatever the statistics say of tx.
                     where (o.tx, o.seq) > (finished.tx, cur.floor) and (o.tx, o.seq) <= (finished.tx, cur.seq)
                       and o.seq > cur.floor and o.seq <= cur.seq
                     order by o.tx, o.seq limit p_limit) as o
            limit p_limit
        ),
        late_end as materialized (
            select count(*) filter (where late.wanted) as events,
                   count(*) = p_limit or coalesce(
                       case when sum(late.at_most) filter (where late.wanted) >= "outrider".batch_bytes() then
                           "outrider".fitting(payloads, array_agg(late.seq) filter (where late.wanted)) is not null end,
                       false) as full
            from late
        ),
        fresh as materialized (
            select o.seq, o.tx, "outrider".stored_at_most(o.payload) as at_most
            from "outrider".outbox as o
            where o.seq > cur.seq and o.seq <= upto and "outrider".wanted(o, p_subscription, cur, others, withdrawn)
            order by o.seq
            limit (select case when late_end.full then 0 else p_limit - late_end.events end from late_end)
        ),
        fresh_end as materialized (
            select coalesce(
                case when sum(fresh.at_most) >= "outrider".batch_bytes() then
                    (array_agg(fresh.seq order by fresh.seq))[
                        "outrider".fitting(payloads, array_agg(fresh.seq order by fresh.seq))] end,
                case when count(*) = (select p_limit - late_end.events from late_end) then max(fresh.seq)
                     else upto end) as seq
            from fresh
        ),
        advance as (
            update "outrider".cursor as c
            set seq        = fresh_end.seq,
                owing      = null,
                owed_after = null,
                inflight   = snapshot.now,
                horizon    = r,
                -- Visible, yet not finished here: a fresh event from another cluster must not be found again as a late one.
                floor      = greatest(cur.floor, case when moved.mark then cur.mark_seq end,
                                      (select max(fresh.seq) from fresh
                                       where fresh.tx >= pg_snapshot_xmin(snapshot.now) and fresh.seq <= fresh_end.seq
                                         and not pg_visible_in_snapshot(fresh.tx, snapshot.now))),
                mark_seq   = case when moved.mark then q else cur.mark_seq end,
                mark_xid   = case when moved.mark then r else cur.mark_xid end,
                cluster    = cur.cluster,
                takes      = cur.takes,
                excused    = cur.excused
            from snapshot, late_end, fresh_end,
                 lateral (select pg_snapshot_xmin(snapshot.now) >= cur.mark_xid as mark) as moved
            where c.id = cur.id and not late_end.full
            returning c.seq
        )
        select case when advance.seq = q then 'done' else 'more' end,
               array(select late.seq from late where late.wanted
                     union all
                     select fresh.seq from fresh where fresh.seq <= advance.seq
                     order by seq)
        into outcome, seqs
        from advance;
        if found then
            return;
        end if;

        select array(select "outrider".late_transactions(
                         cur.inflight, cur.horizon, pg_current_snapshot(), cur.floor, cur.seq)),
               cur.floor, pg_current_snapshot()
        into cur.owing, cur.owed_after, cur.inflight;
    end if;

    with page as materialized (
        -- p_scan positions, from the next event on.
        select least(cur.seq, min(o.seq) + p_scan - 1) as last
        from unnest(cur.owing) as owed (tx),
             lateral (select o.seq from "outrider".outbox as o
                      where (o.tx, o.seq) > (owed.tx, cur.owed_after) and (o.tx, o.seq) <= (owed.tx, cur.seq)
                        and o.seq > cur.owed_after and o.seq <= cur.seq
                      order by o.tx, o.seq limit 1) as o
    ),
    late as materialized (
        select o.seq, o.at_most
        from page, unnest(cur.owing) as owed (tx),
             lateral (select o.seq, "outrider".stored_at_most(o.payload) as at_most from "outrider".outbox as o
                      where (o.tx, o.seq) > (owed.tx, cur.owed_after) and (o.tx, o.seq) <= (owed.tx, page.last)
                        and o.seq > cur.owed_after and o.seq <= page.last
                        and "outrider".wanted(o, p_subscription, cur, others, withdrawn)
                      order by o.tx, o.seq limit p_limit) as o
        order by o.seq limit p_limit
    ),
    fit as materialized (
        select late.seq from late
        order by late.seq
        limit (select case when sum(late.at_most) >= "outrider".batch_bytes() then
                               "outrider".fitting(payloads, array_agg(late.seq order by late.seq)) end from late)
    ),
    fit_end as materialized (
        select case when count(*) = p_limit or count(*) < (select count(*) from late) then max(fit.seq)
                    else coalesce((select page.last from page), cur.seq) end as seq
        from fit
    ),
    advance as (
        update "outrider".cursor as c
        set owing      = case when fit_end.seq < cur.seq then cur.owing end,
            owed_after = case when fit_end.seq < cur.seq then fit_end.seq end,
            inflight   = cur.inflight,
            horizon    = cur.horizon,
            floor      = cur.floor,
            mark_seq   = cur.mark_seq,
            mark_xid   = cur.mark_xid,
            cluster    = cur.cluster,
            takes      = cur.takes,
            excused    = cur.excused
        from fit_end
        where c.id = cur.id
    )
    select 'more', array(select fit.seq from fit order by fit.seq) into outcome, seqs;
end
$_$;

CREATE FUNCTION outrider.reap(p_names text[], p_worker uuid DEFAULT NULL::uuid, p_limit integer DEFAULT 500, p_begun bigint[] DEFAULT NULL::bigint[]) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET lock_timeout TO '20ms'
    AS $$
declare
    job    "outrider".job;
    before timestamptz := case when p_worker is null then clock_timestamp() else 'infinity' end;
    reaped integer := 0;
begin
    perform "outrider".sees_all();
    if not exists (select from "outrider".job as d
                   where d.subscription = any (p_names) and d.status = 'in_flight' and d.lease_expires_at < before) then
        return 0;
    end if;
    for job in
        select d.* from "outrider".job as d
        where d.subscription = any (p_names) and d.status = 'in_flight'
          and d.lease_expires_at < before and (p_worker is null or d.locked_by = p_worker)
        order by d.subscription, d.lease_expires_at limit p_limit
        for no key update skip locked
    loop
        begin
            perform "outrider".release(
                job,
                case when p_worker is null and exists (
                         select from "outrider".worker as w
                         where w.id = job.locked_by and w.seen_at > clock_timestamp() - interval '15 seconds') then 'lapsed'
                     when exists (select from "outrider".worker as w where w.id = job.locked_by and w.stopping) then 'back'
                     when p_worker is not null and job.id <> all (p_begun) then 'back'
                     else 'crashed' end,
                p_worker => job.locked_by::text);
            reaped := reaped + 1;
        exception when lock_not_available then
            update "outrider".job as d set lease_expires_at = clock_timestamp() + interval '1 second' where d.id = job.id;
            perform set_config('lock_timeout', '1ms', true);
        end;
    end loop;
    perform "outrider".wake_jobs(p_names) where reaped > 0;
    return reaped;
end
$$;

CREATE FUNCTION outrider.receipt_key(p_workspace_id text, p_event_type text, p_idempotency_key text, p_id uuid) RETURNS text
    LANGUAGE sql STABLE
    RETURN COALESCE(outrider.in_workspace(p_workspace_id, ((p_event_type || ':'::text) || p_idempotency_key)), (p_id)::text);

CREATE FUNCTION outrider.refuse_nobody(p_workspace_id text, p_kind text, p_subject text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_workspace_id is null and p_subject is null or (p_kind is null) <> (p_subject is null) then
        raise 'whose? Name a workspace, or the kind and id of a subject, or both' using errcode = 'OR006';
    end if;
end
$$;

CREATE FUNCTION outrider.refuse_retention() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    log      bigint := (select s.value from "outrider".setting as s where s.name = 'retention.log_days');
    grace    bigint := (select s.value from "outrider".setting as s where s.name = 'retention.log_grace_days');
    letters  bigint := (select s.value from "outrider".setting as s where s.name = 'retention.dead_letter_days');
    receipts bigint := (select s.value from "outrider".setting as s where s.name = 'retention.receipt_days');
begin
    if (log + grace < receipts) is not true then
        raise 'receipts must outlive the log: retention.log_days + retention.log_grace_days = %, retention.receipt_days = %',
            coalesce((log + grace)::text, 'unset'), coalesce(receipts::text, 'unset')
            using errcode = 'OR009', hint = 'Raise retention.receipt_days first, or in the same transaction.';
    end if;
    if (letters < receipts) is not true then
        raise 'receipts must outlive dead letters: retention.dead_letter_days = %, retention.receipt_days = %',
            coalesce(letters::text, 'unset'), coalesce(receipts::text, 'unset')
            using errcode = 'OR009', hint = 'Raise retention.receipt_days first, or in the same transaction.';
    end if;
    return null;
end
$$;

CREATE FUNCTION outrider.refuse_served(p_name text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    workers bigint := (select count(*) from "outrider".worker as w
                       where p_name = any (w.subscriptions) and "outrider".is_live(w.seen_at));
begin
    if workers > 0 then
        raise '% served % within the last 30 s: stop it first, or use --force, and it fails at its next take',
            case workers when 1 then 'a worker' else workers || ' workers' end, p_name using errcode = 'OR010';
    end if;
end
$$;

CREATE FUNCTION outrider.refuse_unbounded() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
        perform "outrider".bounded(new.payload);
    end if;
    return new;
end
$$;

CREATE FUNCTION outrider.refuse_unbounded_payload() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if new.payload is distinct from old.payload then
        perform "outrider".bounded(new.payload);
    end if;
    return new;
end
$$;

CREATE FUNCTION outrider.refuse_unsettled() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if current_setting('outrider.settled', true) is distinct from new.takes::text then
        raise 'this transaction belongs to the worker: a handler must not commit it'
            using errcode = 'OR005', hint = 'Let the handler return; its effects and its receipt then commit together.';
    end if;
    return null;
end
$$;

CREATE FUNCTION outrider.register(p_name text, p_kind text, p_context text, p_event_types text[], p_partitions integer DEFAULT 1, p_start text DEFAULT 'now'::text, p_ordering text DEFAULT 'key'::text, OUT outcome text, OUT partitions integer) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
declare
    q        bigint;
    r        xid8;
    full_seq bigint;
    sub      "outrider".subscription;
begin
    perform "outrider".sees_all();
    if current_setting('transaction_isolation') <> 'read committed'
       or pg_current_xact_id_if_assigned() is not null then
        raise 'register must be the first statement of a READ COMMITTED transaction' using errcode = 'OR001';
    end if;
    if (select s.seqcache from pg_sequence as s where s.seqrelid = '"outrider".outbox_seq'::regclass) <> 1 then
        raise 'the sequence of the log must have CACHE 1: with more, cursors would skip events'
            using errcode = 'OR003', hint = 'alter sequence "outrider".outbox_seq cache 1';
    end if;

    q := coalesce(pg_sequence_last_value('"outrider".outbox_seq'::regclass), 0);

    insert into "outrider".subscription (name, kind, context, event_types, partitions, ordering)
    values (p_name, p_kind, p_context, p_event_types, p_partitions, p_ordering)
    on conflict (name) do nothing;

    if found and p_event_types = '{}' then  -- a job that is only enqueued reads nothing
        outcome := 'created';
        partitions := p_partitions;
        return;
    end if;
    if found and p_start not in ('now', 'beginning') and p_start::timestamptz > clock_timestamp() + interval '1 minute' then
        raise 'subscription "%" cannot start at %, which is in the future', p_name, p_start::timestamptz
            using errcode = 'OR002', hint = 'Leave out start= and deploy it at that time; or start now, and skip earlier events in the handler.';
    end if;
    if found then
        r := pg_current_xact_id();
        if p_start not in ('now', 'beginning') then
            full_seq := coalesce((select max(s.last_seq) from "outrider".segment as s
                                  where s.closed_at < p_start::timestamptz - interval '1 hour'), 0);
        end if;
        with snapshot as materialized (
            select pg_current_snapshot() as now, "outrider".foreign_floor(pg_current_snapshot()) as foreign_floor
        )
        insert into "outrider".cursor (
            subscription, partition, seq, floor, inflight, horizon, mark_seq, mark_xid, cluster)
        select p_name, n,
               case p_start
                   when 'now' then q
                   when 'beginning' then 0
                   else coalesce((select min(o.seq) - 1 from "outrider".outbox as o
                                  where o.seq > full_seq and o.seq <= q and o.occurred_at >= p_start::timestamptz), q)
               end,
               snapshot.foreign_floor, snapshot.now, r, q, r, (select "outrider".log_home())
        from snapshot, generate_series(0, p_partitions - 1) as n;
        outcome := 'created';
        partitions := p_partitions;
        return;
    end if;

    -- Not FOR UPDATE: a worker that parks, holding its cursor, checks the foreign key to this row.
    select s.* into sub from "outrider".subscription as s where s.name = p_name for no key update;
    if sub.kind <> p_kind or sub.context <> p_context then
        raise 'subscription "%" is registered as a % of context "%", not as a % of context "%"',
            p_name, sub.kind, sub.context, p_kind, p_context
            using errcode = 'OR002', hint = 'Give the new one another name.';
    end if;

    if (sub.event_types = '{}') is distinct from (p_event_types = '{}') then
        raise 'the job "%" is registered as % and cannot become %', p_name,
            case when sub.event_types = '{}' then 'enqueued' else 'made of events' end,
            case when sub.event_types = '{}' then 'made of events' else 'enqueued' end
            using errcode = 'OR002', hint = 'Give the new one another name.';
    end if;

    outcome := 'unchanged';
    if sub.event_types is not null and (p_event_types is null or not sub.event_types @> p_event_types) then
        update "outrider".subscription as s
        set event_types = case when p_event_types is not null then
            array(select distinct t from unnest(sub.event_types || p_event_types) as t order by t) end
        where s.name = p_name;
        outcome := 'extended';
    end if;

    if p_ordering = 'total' and sub.partitions > 1 then
        raise 'subscription "%" has % partitions, and order="total" needs one', p_name, sub.partitions
            using errcode = 'OR002', hint = 'Partitions do not shrink: give the new one another name.';
    end if;
    if sub.ordering <> p_ordering or sub.partitions < p_partitions then
        perform from "outrider".cursor as c where c.subscription = p_name order by generation, partition for update;
    end if;

    if sub.ordering <> p_ordering then
        update "outrider".subscription as s set ordering = p_ordering where s.name = p_name;
        -- Under the cursors' locks, because a take in progress parks by the order that it has read. Heads in a second step,
        -- because a key must never have two.
        update "outrider".delivery as d
        set ordering_key = lined.line, head = lined.line is null and d.status = 'pending'
        from (select d.id, "outrider".ordering_key(p_ordering, o.workspace_id, o.aggregate_id) as line
              from "outrider".delivery as d
              left join lateral (select o.* from "outrider".outbox as o where o.seq = d.seq limit 1) as o on true
              where d.subscription = p_name) as lined
        where d.id = lined.id;
        update "outrider".delivery as d set head = true
        from (select d.generation, d.ordering_key, min(d.seq) as seq from "outrider".delivery as d
              where d.subscription = p_name and d.status = 'pending' and d.ordering_key is not null
              group by d.generation, d.ordering_key) as first
        where d.subscription = p_name and d.seq = first.seq;
        outcome := 'extended';
    end if;

    partitions := sub.partitions;
    if partitions < p_partitions then
        while partitions < p_partitions loop
            insert into "outrider".cursor (
                subscription, generation, partition,
                seq, floor, inflight, horizon, owing, owed_after, mark_seq, mark_xid, cluster, served_by)
            select c.subscription, c.generation, c.partition + register.partitions,
                   c.seq, c.floor, c.inflight, c.horizon, c.owing, c.owed_after, c.mark_seq, c.mark_xid, c.cluster,
                   c.served_by
            from "outrider".cursor as c where c.subscription = p_name;
            partitions := partitions * 2;
        end loop;
        update "outrider".subscription as s set partitions = register.partitions where s.name = p_name;
        update "outrider".delivery as d
        set partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (register.partitions - 1)
        from "outrider".outbox as o where d.subscription = p_name and o.seq = d.seq;
        outcome := 'extended';
    end if;
end
$$;

CREATE FUNCTION outrider.register_job(p_name text, p_lease interval, p_timeout interval, p_concurrency integer, p_key_concurrency integer, p_keep interval DEFAULT NULL::interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update "outrider".subscription as s
    set lease = p_lease, timeout = p_timeout, concurrency = p_concurrency, key_concurrency = p_key_concurrency,
        keep = p_keep
    where s.name = p_name
      and (s.lease, s.timeout, s.concurrency, s.key_concurrency, s.keep)
          is distinct from (p_lease, p_timeout, p_concurrency, p_key_concurrency, p_keep);
    if found then
        perform "outrider".wake(array[p_name]);
    end if;
end
$$;

CREATE FUNCTION outrider.register_relay(p_name text, p_workspace_id text, p_forwards boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update "outrider".subscription as s set workspace_id = p_workspace_id, forwards = p_forwards
    where s.name = p_name and s.kind = 'relay';
end
$$;

CREATE FUNCTION outrider.relay_ahead(p_subscription text, p_events uuid[], OUT strangers bigint, OUT stranger uuid) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    AS $$
begin
    perform "outrider".relay_only(p_subscription);
    with told as materialized (
        select distinct e.id, exists (select from "outrider".outbox as o where o.id = e.id) as ours
        from unnest(p_events) as e (id)
    ),
    put as (
        insert into "outrider".stream_ahead (subscription, event_id)
        select p_subscription, told.id from told where told.ours
        on conflict do nothing
    )
    select count(*), min(told.id::text)::uuid into strangers, stranger from told where not told.ours;
end
$$;

CREATE FUNCTION outrider.relay_hold(p_subscription text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform "outrider".relay_only(p_subscription);
    return query
    select c.seq from "outrider".cursor as c where c.subscription = p_subscription and c.generation = 0 and c.partition = 0
    for update skip locked;
end
$$;

CREATE FUNCTION outrider.relay_mark(p_subscription text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into "outrider".stream_mark (subscription, positions, cursor)
    select p_subscription,
           coalesce((select jsonb_object_agg(s.name, s.position) from "outrider".stream as s
                     where s.subscription = p_subscription), '{}'),
           to_jsonb(c)
    from "outrider".cursor as c where c.subscription = p_subscription and c.generation = 0 and c.partition = 0;

    delete from "outrider".stream_mark as m
    where m.subscription = p_subscription and m.at < (
        select max(old.at) from "outrider".stream_mark as old
        where old.subscription = p_subscription and old.at < now() - interval '24 hours');
    delete from "outrider".stream_replayed as r
    where r.subscription = p_subscription
      and r.at < (select min(m.at) from "outrider".stream_mark as m where m.subscription = p_subscription);
end
$$;

CREATE FUNCTION outrider.relay_only(p_subscription text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform "outrider".sees_all(true);
    if not exists (select from "outrider".subscription as s where s.name = p_subscription and s.kind = 'relay') then
        raise 'there is no relay %', quote_nullable(left(p_subscription, 100))
            using errcode = 'OR002', hint = 'Register it first: app.migrate() or outrider migrate --app.';
    end if;
end
$$;

CREATE FUNCTION outrider.relay_open(p_subscription text, p_streams text[], p_positions text[], p_adopt boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '10s'
    AS $$
begin
    perform "outrider".relay_only(p_subscription);
    perform from "outrider".cursor as c where c.subscription = p_subscription for update;
    insert into "outrider".stream as s (subscription, name, position)
    select p_subscription, opened.name, opened.position from unnest(p_streams, p_positions) as opened (name, position)
    on conflict (subscription, name) do update set position = excluded.position where p_adopt;
    if not exists (select from "outrider".stream_mark as m where m.subscription = p_subscription) then
        perform "outrider".relay_mark(p_subscription);
    end if;
end
$$;

CREATE FUNCTION outrider.relay_reject(p_subscription text, p_seq bigint, p_code text, p_message text, p_worker text, p_delay interval, p_most integer, p_bury boolean, OUT attempts integer, OUT buried boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '10s'
    AS $$
#variable_conflict use_column
declare
    cur "outrider".cursor;
begin
    perform "outrider".relay_only(p_subscription);
    buried := false;
    select c.* into strict cur from "outrider".cursor as c
    where c.subscription = p_subscription and c.generation = 0 and c.partition = 0 for update;
    if not exists (select from "outrider".delivery as d
                   where d.subscription = p_subscription and d.seq = p_seq and d.status = 'pending') and exists (
        select from "outrider".outbox as o
        where o.seq = p_seq
          and (exists (select from "outrider".withdrawal as w where w.seq = o.seq)
               or o.seq <= cur.seq
                  and not coalesce(o.tx = any (cur.owing) and o.seq > cur.owed_after, false)
                  and not (o.seq > cur.floor and o.tx < cur.horizon and not pg_visible_in_snapshot(o.tx, cur.inflight)))) then
        attempts := 0;
        return;
    end if;
    insert into "outrider".delivery as d (
        subscription, partition, seq, event_id, event_type, status, head, reached, run_at, attempts, last_error_code, last_error,
        first_failed_at, failure_history)
    select p_subscription, 0, o.seq, o.id, o.event_type, 'pending', true, false, clock_timestamp() + p_delay, 1,
           p_code, p_message, clock_timestamp(),
           jsonb_build_array("outrider".failure(1, 1, p_code, p_message, p_worker))
    from "outrider".outbox as o where o.seq = p_seq
    on conflict (subscription, seq) do update
    set attempts = d.attempts + 1, run_at = excluded.run_at, last_error_code = p_code, last_error = p_message,
        first_failed_at = coalesce(d.first_failed_at, excluded.first_failed_at),
        failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                else d.failure_history end)
                          || "outrider".failure(d.cycle, d.attempts + 1, p_code, p_message, p_worker)
    where d.status = 'pending'
    returning d.attempts into attempts;
    if attempts >= p_most and p_bury then
        update "outrider".delivery as d
        set status = 'failed', head = false, buried_at = clock_timestamp()
        where d.subscription = p_subscription and d.seq = p_seq and d.status = 'pending';
        buried := found;
    end if;
end
$$;

CREATE FUNCTION outrider.relay_rewind(p_subscription text, p_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
declare
    back "outrider".cursor;
begin
    perform "outrider".relay_only(p_subscription);
    select (jsonb_populate_record(null::"outrider".cursor, m.cursor)).* into strict back
    from "outrider".stream_mark as m where m.subscription = p_subscription and m.at = p_at;
    update "outrider".cursor as c
    set seq = back.seq, floor = back.floor, inflight = back.inflight, horizon = back.horizon, owing = back.owing,
        owed_after = back.owed_after, mark_seq = back.mark_seq, mark_xid = back.mark_xid, cluster = back.cluster
    where c.subscription = p_subscription and c.generation = 0 and c.partition = 0;
    with again as (
        delete from "outrider".stream_replayed as r where r.subscription = p_subscription and r.at > p_at returning r.*
    )
    insert into "outrider".delivery (
        subscription, partition, seq, event_id, event_type, status, head, reached, run_at, payload, cycle, failure_history)
    select distinct on (again.seq) again.subscription, 0, again.seq, again.event_id, again.event_type, 'pending', true, true,
           clock_timestamp(), again.payload, again.cycle, again.failure_history
    from again order by again.seq, again.at desc
    on conflict (subscription, seq) do nothing;
    -- The cursor will pass these again; the rule is that of the view event_status.
    update "outrider".delivery as d set reached = false
    from "outrider".outbox as o
    where d.subscription = p_subscription and d.reached and o.seq = d.seq
      and not (o.seq <= back.seq
               and not coalesce(o.tx = any (back.owing) and o.seq > back.owed_after, false)
               and not (o.seq > back.floor and o.tx < back.horizon and not pg_visible_in_snapshot(o.tx, back.inflight)));
    delete from "outrider".stream_mark as m where m.subscription = p_subscription and m.at > p_at;
    delete from "outrider".stream_ahead as a where a.subscription = p_subscription;
end
$$;

CREATE FUNCTION outrider.relay_settle(p_subscription text, p_streams text[], p_positions text[], p_events bigint[], p_sent bigint[], p_passed bigint[], p_found uuid[], p_done boolean, p_mark boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
begin
    perform "outrider".relay_only(p_subscription);
    update "outrider".stream as s
    set position = moved.position, events = s.events + moved.events, moved_at = clock_timestamp()
    from unnest(p_streams, p_positions, p_events) as moved (name, position, events)
    where s.subscription = p_subscription and s.name = moved.name;
    if p_sent <> '{}' then
        with sent as (
            delete from "outrider".delivery as d where d.id = any (p_sent) and d.subscription = p_subscription returning d.*
        )
        insert into "outrider".stream_replayed (subscription, seq, event_id, event_type, payload, cycle, failure_history)
        select sent.subscription, sent.seq, sent.event_id, sent.event_type, sent.payload, sent.cycle, sent.failure_history
        from sent where sent.reached or sent.payload is not null;
    end if;
    if p_passed <> '{}' then
        update "outrider".delivery as d set reached = true where d.id = any (p_passed) and d.subscription = p_subscription and not d.reached;
    end if;
    if p_done then
        delete from "outrider".stream_ahead as a where a.subscription = p_subscription;
    elsif p_found <> '{}' then
        delete from "outrider".stream_ahead as a where a.subscription = p_subscription and a.event_id = any (p_found);
    end if;
    if p_mark and not exists (select from "outrider".stream_ahead as a where a.subscription = p_subscription) then
        perform "outrider".relay_mark(p_subscription);
    end if;
end
$$;

CREATE FUNCTION outrider.relay_take(p_subscription text, p_limit integer, p_scan integer, p_knows text[]) RETURNS SETOF outrider.taken
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform "outrider".relay_only(p_subscription);
    return query select * from "outrider".take(p_subscription, 0, p_limit, p_scan, 0, p_knows);
end
$$;

CREATE FUNCTION outrider.release(p_job outrider.job, p_verdict text, p_delay double precision DEFAULT 0, p_code text DEFAULT NULL::text, p_message text DEFAULT NULL::text, p_counted boolean DEFAULT true, p_worker text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    job     "outrider".job := p_job;
    code    text := p_code;
    message text := p_message;
    told    text;
begin
    job.locked_by := null;
    job.locked_at := null;
    job.lease_token := null;
    job.lease_expires_at := null;
    job.cancelled_at := null;
    case p_verdict
        when 'later' then
            told := 'retry';
            job.status := 'pending';
            job.run_at := clock_timestamp() + p_delay * interval '1 second';
            job.attempts := job.attempts - (not p_counted)::integer;
            job.crashes := 0;
        when 'dead' then
            told := 'buried';
            job.status := 'failed';
        when 'back' then
            told := 'back';
            job.status := 'pending';
            job.attempts := job.attempts - 1;
        when 'lapsed' then
            told := 'back';
            job.status := 'pending';
            job.attempts := job.attempts - 1;
            code := 'lease_lost';
            message := 'its lease ran out while its worker was alive';
        when 'crashed' then
            job.crashes := job.crashes + 1;
            job.attempts := job.attempts - 1;
            code := 'worker_crash';
            message := 'the process that ran it died: ' || job.crashes || case job.crashes when 1 then ' time' else ' times' end;
            told := case when job.crashes >= 3 then 'buried' else 'retry' end;
            job.status := case when job.crashes >= 3 then 'failed' else 'pending' end;
            job.run_at := clock_timestamp();
        when 'cancelled' then
            told := 'cancelled';
            job.status := 'discarded';
            code := 'cancelled';
            message := coalesce(p_message, 'it was cancelled while it ran');
    end case;
    if job.status = 'pending' and p_job.cancelled_at is not null then
        told := 'cancelled';
        job.status := 'discarded';
        code := 'cancelled';
        message := 'it was cancelled while it ran';
    end if;
    if code is not null then
        job.last_error_code := code;
        job.last_error := message;
        job.last_traceback := case when p_verdict in ('later', 'dead') and told <> 'cancelled' then job.last_traceback end;
        job.first_failed_at := coalesce(job.first_failed_at, now());
        job.failure_history := (case when jsonb_array_length(job.failure_history) >= 100 then job.failure_history - 0
                                     else coalesce(job.failure_history, '[]') end)
                               || "outrider".failure(job.cycle, p_job.attempts, code, message, p_worker);
    end if;
    -- Two sessions may both find no other job with the unique key. Then the unique index decides, and the second pass supersedes
    -- this one. A running job does not supersede a closed one: it may have started before the transactions that kept this one
    -- had committed. What failed for good is superseded too, because a replay would run it after the newer job.
    for attempt in 1..2 loop
        if job.status in ('pending', 'failed') and job.unique_key is not null and job.seq is null and (
            attempt = 2 or p_job.superseded_at is not null
            or exists (select from "outrider".job as d
                       where d.subscription = job.subscription
                         and coalesce(d.workspace_id, '') = coalesce(job.workspace_id, '')
                         and d.unique_key = job.unique_key and d.status = 'pending' and d.seq is null and not d.closed)
            or not p_job.closed and exists (
                select from "outrider".job as d
                where d.subscription = job.subscription and coalesce(d.workspace_id, '') = coalesce(job.workspace_id, '')
                  and d.unique_key = job.unique_key and d.status = 'in_flight' and d.seq is null and d.id > job.id)) then
            told := 'superseded';
            job.status := 'discarded';
            job.failure_history := coalesce(job.failure_history, '[]') || jsonb_build_object(
                'cycle', job.cycle, 'superseded_at', clock_timestamp());
        end if;
        job.buried_at := case when job.status = 'failed' then now() end;
        if job.status = 'pending' and job.unique_key is not null then
            begin
                perform "outrider".rewrite(job);
                exit;
            exception when unique_violation then
                null;
            end;
        else
            perform "outrider".rewrite(job);
            exit;
        end if;
    end loop;
    -- In every case: the job is due now, or at a time that only its worker knows, which may be gone by then; or there is room.
    perform "outrider".notify(
        "outrider".generation_channel(job.generation),
        job.subscription);
    return told;
end
$$;

CREATE FUNCTION outrider.rename(p_old text, p_new text, p_force boolean DEFAULT false, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    AS $_$
declare
    receipts bigint;
begin
    if (p_new ~ '^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)*$' and octet_length(p_new) <= 63) is not true then
        raise 'the new name % is not lower-case words joined by dots, of at most 63 bytes', quote_nullable(left(p_new, 100))
            using errcode = 'OR010';
    end if;
    perform "outrider".hold_subscription(p_old);
    if p_force is not true then
        perform "outrider".refuse_served(p_old);
    end if;
    if exists (select from "outrider".subscription as s where s.name = p_new) then
        raise 'a subscription ''%'' exists already: if it was registered by mistake and has handled nothing, run `outrider subscription retire %` first; otherwise choose another name',
            p_new, p_new using errcode = 'OR010';
    end if;
    if exists (select from "outrider".event_handled as h where h.handler_name = p_new) then
        raise 'receipts of an earlier subscription ''%'' exist, and the events that it handled would be skipped: choose another name', p_new
            using errcode = 'OR010';
    end if;
    update "outrider".delivery as d set subscription = p_new where d.subscription = p_old;
    update "outrider".job as j set subscription = p_new where j.subscription = p_old;
    update "outrider".subscription as s set name = p_new where s.name = p_old;
    update "outrider".event_handled as h set handler_name = p_new where h.handler_name = p_old;
    get diagnostics receipts = row_count;
    perform "outrider".note('rename', p_by, p_reason, p_old, null, jsonb_build_object('new', p_new, 'receipts', receipts));
    return receipts;
end
$_$;

CREATE FUNCTION outrider.renew(p_worker uuid, p_names text[]) RETURNS TABLE(delivery bigint, token bigint, lease double precision, cancelled boolean)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    moment timestamptz := clock_timestamp();
    places tid[];
begin
    perform "outrider".sees_all();
    places := array(
        select d.ctid from "outrider".subscription as s join "outrider".job as d on d.subscription = s.name
        where s.name = any (p_names) and d.status = 'in_flight' and d.locked_by = p_worker
          and d.lease_expires_at < moment + coalesce(s.lease, interval '5 minutes') * 0.9
          and (s.timeout is null or d.locked_at + s.timeout + coalesce(s.lease, interval '5 minutes') > moment)
        for no key update of d skip locked);
    update "outrider".job as d set lease_expires_at = moment + coalesce(s.lease, interval '5 minutes')
    from unnest(places) as q (place), "outrider".subscription as s
    where d.ctid = q.place and s.name = d.subscription;
    return query
    select d.id, d.lease_token, extract(epoch from d.lease_expires_at - moment)::double precision,
           d.cancelled_at is not null
    from "outrider".job as d
    where d.subscription = any (p_names) and d.status = 'in_flight' and d.locked_by = p_worker;
end
$$;

CREATE FUNCTION outrider.replace_closed(p_job_type text, p_unique_key text, p_workspace_id text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
begin
    if (p_workspace_id = nullif(current_setting('app.workspace_id', true), '')) is not true
       and not "outrider".sees_every_tenant(coalesce(nullif(current_setting('role'), 'none'), session_user)) then
        raise 'row-level security: % is of another workspace than app.workspace_id', quote_nullable(left(p_job_type, 100))
            using errcode = 'insufficient_privilege';
    end if;
    update "outrider".job as d
    set payload = o.payload, event_version = o.event_version, source = o.source, trace_context = o.trace_context,
        generation = o.generation, queue = o.queue, priority = o.priority, job_key = o.job_key,
        waits_for = nullif(d.waits_for, 'key'), attempts = 0, crashes = 0
    from "outrider".job as o
    where o.subscription = p_job_type and coalesce(o.workspace_id, '') = coalesce(p_workspace_id, '')
      and o.unique_key = p_unique_key and o.status = 'pending' and o.seq is null and not o.closed
      and d.subscription = p_job_type and coalesce(d.workspace_id, '') = coalesce(p_workspace_id, '')
      and d.unique_key = p_unique_key and d.status = 'pending' and d.seq is null and d.closed;
end
$$;

CREATE FUNCTION outrider.replay(p_deliveries bigint[], p_replayed_by text DEFAULT NULL::text, p_new_generation bigint DEFAULT NULL::bigint, p_force boolean DEFAULT false, p_payload jsonb DEFAULT NULL::jsonb, p_reason text DEFAULT NULL::text) RETURNS TABLE(delivery bigint, event_id uuid, subscription text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '10s'
    AS $$
#variable_conflict use_column
declare
    who      constant text := "outrider".signed(p_replayed_by);
    allowed  constant bigint := (select s.value from "outrider".setting as s where s.name = 'payload_max_bytes');
    mark     constant jsonb := jsonb_strip_nulls(jsonb_build_object(
        'replayed_at', clock_timestamp(), 'by', who, 'forced', nullif(p_force, false),
        'edited', nullif(p_payload is not null, false), 'generation', p_new_generation));
    reason   constant jsonb := jsonb_strip_nulls(jsonb_build_object('reason', left(p_reason, 2000)));
    outcomes text[];
    dead     bigint[];
    revived  bigint[];
begin
    perform "outrider".sees_all(true);
    if (p_force or p_payload is not null) and not "outrider".operates() then
        raise 'only an operator may replay with force or with another payload'
            using errcode = '42501', hint = 'An operator is a role that may execute withdraw.';
    end if;
    if p_payload is not null and (jsonb_typeof(p_payload) <> 'object' or (octet_length(nullif("outrider".as_text(p_payload), '')) <= allowed) is not true) then
        raise 'the new payload must be a JSON object of at most % bytes', allowed using errcode = 'OR006';
    end if;
    perform "outrider".hold_partitions(p_deliveries, p_new_generation);
    perform from "outrider".delivery as d
    where d.id = any (p_deliveries) and d.status in ('failed', 'discarded') order by d.id for update;
    perform from "outrider".job as j
    where j.id = any (p_deliveries) and j.status in ('failed', 'discarded') order by j.id for update;

    -- In the order of p_deliveries; null = it can be replayed.
    outcomes := array(
        select case when d.last_error_code = '(erased)' or o.erased_at is not null then 'erased'
                    when d.status in ('failed', 'discarded') and h.event_id is not null and p_force is not true then 'skipped_handled'
                    when d.status = 'failed' or d.status = 'discarded' and p_force then null
                    else 'not_found' end
        from unnest(p_deliveries) with ordinality as asked (id, place)
        left join lateral (select d.* from "outrider".owed as d where d.id = asked.id limit 1) as d on true
        left join lateral (select o.* from "outrider".outbox as o where o.seq = d.seq limit 1) as o on true
        left join "outrider".event_handled as h
            on h.handler_name = d.subscription
           and h.idempotency_key = "outrider".receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
        order by asked.place);
    dead := array(select told.id from unnest(p_deliveries, outcomes) as told (id, outcome) where told.outcome is null);
    if p_force then
        perform "outrider".forget_receipts(dead, who, p_reason);
    end if;
    revived := "outrider".replay_events(dead, p_new_generation, p_payload, mark)
               || "outrider".replay_jobs(dead, p_new_generation, p_payload, mark, reason);

    if p_payload is not null then
        insert into "outrider".audit (by, action, subscription, event_id, details)
        select who, 'edit', d.subscription, d.event_id, jsonb_build_object('payload', p_payload) || reason
        from "outrider".owed as d where d.id = any (revived) and d.seq is not null;
    elsif revived <> '{}' and p_force is not true then
        -- Name the subscription, or the event, if it is only one.
        perform "outrider".note(
            'replay', p_replayed_by, p_reason,
            case when min(d.subscription) = max(d.subscription) then min(d.subscription) end,
            case when min(d.event_id::text) = max(d.event_id::text) then min(d.event_id::text) end::uuid,
            jsonb_strip_nulls(jsonb_build_object(
                'replayed', cardinality(revived),
                'skipped_handled', nullif(cardinality(array_positions(outcomes, 'skipped_handled')), 0),
                'superseded', nullif(cardinality(dead) - cardinality(revived), 0), 'generation', p_new_generation)))
        from "outrider".owed as d where d.id = any (revived);
    end if;
    perform "outrider".notify(waiting.channel, waiting.type)
    from (select distinct "outrider".generation_channel(d.generation) as channel,
                          case d.kind when 'job' then d.subscription else d.event_type end as type
          from "outrider".owed as d where d.id = any (revived)) as waiting;
    return query
    select asked.id, d.event_id, d.subscription,
           case when asked.id = any (revived) then 'replayed' else coalesce(asked.outcome, 'superseded') end
    from unnest(p_deliveries, outcomes) with ordinality as asked (id, outcome, place)
    left join lateral (select d.* from "outrider".owed as d where d.id = asked.id limit 1) as d on true
    order by asked.place;
end
$$;

CREATE FUNCTION outrider.replay_events(p_deliveries bigint[], p_new_generation bigint, p_payload jsonb, p_mark jsonb) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    revived bigint[];
begin
    with back as (
        update "outrider".delivery as d
        set status = 'pending', head = d.ordering_key is null, attempts = 0, crashes = 0, suspect = false, cycle = d.cycle + 1,
            run_at = now(), buried_at = null, payload = coalesce(p_payload, d.payload),
            generation = coalesce(p_new_generation, d.generation),
            -- Its cursor will not read the event again, so it need not wait for the cursor.
            reached = d.reached or coalesce(p_new_generation <> d.generation, false) or not exists (
                select from "outrider".subscription as s where s.name = d.subscription
                   and (s.event_types is null or d.event_type = any (s.event_types))),
            failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                    else d.failure_history end) || (jsonb_build_object('cycle', d.cycle) || p_mark)
        where d.id = any (p_deliveries)
        returning d.id
    )
    select coalesce(array_agg(back.id), '{}') into revived from back;
    perform "outrider".promote(line.subscription, line.generation, line.keys)
    from (select d.subscription, d.generation, array_agg(distinct d.ordering_key) as keys from "outrider".delivery as d
          where d.id = any (revived) and d.ordering_key is not null
          group by d.subscription, d.generation) as line;
    return revived;
end
$$;

CREATE FUNCTION outrider.replay_jobs(p_jobs bigint[], p_new_generation bigint, p_payload jsonb, p_mark jsonb, p_reason jsonb) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '20ms'
    AS $$
declare
    dead    "outrider".job;
    revived bigint[] := '{}';
begin
    for dead in select j.* from "outrider".job as j where j.id = any (p_jobs) order by j.id desc loop
        begin
            update "outrider".job as j
            set status = 'pending', waits_for = null, closed = false, attempts = 0, crashes = 0, cycle = j.cycle + 1,
                run_at = now(), buried_at = null, payload = coalesce(p_payload, j.payload),
                generation = coalesce(p_new_generation, j.generation),
                failure_history = (case when jsonb_array_length(j.failure_history) >= 100 then j.failure_history - 0
                                        else coalesce(j.failure_history, '[]') end)
                                  || (jsonb_build_object('cycle', j.cycle) || p_mark)
            where j.id = dead.id;
        exception
            when unique_violation then  -- job_unique or job_once
                continue;
            when lock_not_available then
                perform set_config('lock_timeout', '1ms', true);
                continue;
        end;
        revived := revived || dead.id;
        if p_payload is not null and dead.seq is null then
            -- Whose job it was: when it is done, erase finds that nowhere else.
            insert into "outrider".audit (by, action, subscription, event_id, details)
            values (p_mark ->> 'by', 'edit', dead.subscription, dead.event_id,
                    jsonb_build_object('payload', p_payload, 'before', dead.payload, 'workspace', dead.workspace_id,
                                       'job', coalesce(dead.job_key, '')) || p_reason);
        end if;
    end loop;
    return revived;
end
$$;

CREATE FUNCTION outrider.resume(p_name text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    since  timestamptz;
    closed bigint;
begin
    select s.paused_at into since from "outrider".subscription as s where s.name = p_name for no key update;
    if not found then
        raise 'there is no subscription %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    update "outrider".subscription as s set paused_at = null where s.name = p_name;
    update "outrider".cursor as c set failures = 0, open_until = null
    where c.subscription = p_name and (c.failures > 0 or c.open_until is not null);
    get diagnostics closed = row_count;
    perform "outrider".note('resume', p_by, p_reason, p_name, null, jsonb_strip_nulls(jsonb_build_object(
        'paused_since', since, 'breakers_closed', nullif(closed, 0))));
    perform "outrider".wake(array[p_name]);
    return since is not null;
end
$$;

CREATE FUNCTION outrider.resume_all(p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    since timestamptz := (select s.updated_at from "outrider".setting as s where s.name = 'paused' and s.value <> 0);
    was   boolean;
begin
    update "outrider".setting as s set value = 0, updated_at = now() where s.name = 'paused' and s.value <> 0;
    was := found;
    perform "outrider".note('resume_all', p_by, p_reason, null, null, jsonb_strip_nulls(jsonb_build_object(
        'paused_since', since, 'subscriptions', (select count(*) from "outrider".subscription))));
    if was then
        perform "outrider".wake(array(select s.name from "outrider".subscription as s));
    end if;
    return was;
end
$$;

CREATE FUNCTION outrider.resume_schedule(p_name text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    since timestamptz;
begin
    select s.paused_at into since from "outrider".schedule as s where s.name = p_name for update;
    if not found then
        raise 'there is no schedule %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    update "outrider".schedule as s
    set paused_at = null,
        fired_at = case when s.missed in ('once', 'skip') then greatest(s.fired_at, clock_timestamp()) else s.fired_at end
    where s.name = p_name and s.paused_at is not null;
    perform "outrider".note('resume_schedule', p_by, p_reason, null, null, jsonb_strip_nulls(jsonb_build_object(
        'schedule', p_name, 'paused_since', since)));
    return since is not null;
end
$$;

CREATE FUNCTION outrider.retire(p_name text, p_force boolean DEFAULT false, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text, OUT unread bigint, OUT more boolean, OUT waiting bigint, OUT dead bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    AS $$
begin
    perform "outrider".hold_subscription(p_name);
    if p_force is not true then
        perform "outrider".refuse_served(p_name);
    end if;
    select u.events, u.more into unread, more from "outrider".unread(p_name) as u;
    waiting := (select count(*) from (select from "outrider".unfinished as u where u.subscription = p_name limit 10000) as u);
    dead := (select count(*) from (select from "outrider".owed as d
                                   where d.subscription = p_name and d.status = 'failed' limit 10000) as d);
    if p_force is not true and (more or unread + waiting + dead > 0) then
        raise 'retiring % would lose events (% unread, % waiting for retry, % dead letters): let a worker handle them, rename it (`outrider subscription rename % NEW`), or use --force to lose them',
            p_name, case when more then 'at least ' else '' end || unread,
            waiting || case when waiting = 10000 then ' or more' else '' end,
            dead || case when dead = 10000 then ' or more' else '' end, p_name using errcode = 'OR010';
    end if;
    delete from "outrider".delivery as d where d.subscription = p_name;
    delete from "outrider".job as j where j.subscription = p_name;
    delete from "outrider".subscription as s where s.name = p_name;
    perform "outrider".note('retire', p_by, p_reason, p_name, null, jsonb_strip_nulls(jsonb_build_object(
        'forced', nullif(p_force, false), 'unread', unread, 'more', nullif(more, false), 'waiting', waiting, 'dead', dead)));
end
$$;

CREATE FUNCTION outrider.rewrite(p_job outrider.job) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update "outrider".job as d
    set status = p_job.status, run_at = p_job.run_at, attempts = p_job.attempts, crashes = p_job.crashes,
        buried_at = p_job.buried_at, last_error_code = p_job.last_error_code, last_error = p_job.last_error,
        last_traceback = p_job.last_traceback,
        fingerprint = case when p_job.last_error_code is not null
                           then "outrider".error_fingerprint(p_job.last_error_code, p_job.last_error) end,
        first_failed_at = p_job.first_failed_at, failure_history = p_job.failure_history, locked_by = null,
        locked_at = null, lease_token = null, lease_expires_at = null, cancelled_at = null, superseded_at = null, closed = false
    where d.id = p_job.id
$$;

CREATE FUNCTION outrider.rollup_check_key(p_spec jsonb) RETURNS TABLE(topic text, passed boolean, value text, detail text, blocks boolean)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
declare
    part    constant record := "outrider".rollup_parts(p_spec);
    literal constant text := '(\W)';   -- characters that a pattern must escape
    counts  record;
    item    record;
begin
    topic := 'stable key'; blocks := false;
    select count(*) as staged, count(p.group_key) as keyed into counts
    from (select p.group_key from "outrider".rollup_pending as p where p.rollup = p_spec ->> 'name'
          order by p.id desc limit 10000) as p;
    if p_spec ->> 'table' is null then
        value := 'BEFORE'; detail := 'an event does not change';
    elsif exists (select from pg_attribute as a where a.attrelid = part.key_table and a.attname = any (part.key_columns)
                    and not a.attisdropped and (a.attnotnull or a.atthasdef)) then
        value := 'BEFORE'; detail := 'a column of it is always set';
    else
        value := 'UNKNOWN';
        detail := 'no function of this database inserts into ' || part.key_table::text || ' with a column of the key';
        for item in
            select p.oid::regprocedure::text as name,
                   p.prosrc ~* format('insert\s+into\s+%s\s*(as\s+\w+\s*)?\([^)]*(\W)(%s)\W', c.called, k.called) as inserts,
                   p.prosrc ~* format('update\s+(only\s+)?%s\s+[^;]*(\W)(%s)"?\s*=', c.called, k.called) as updates
            from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
            cross join (select format('(\w+\.|"[^.]+"\.)?"?%s"?', regexp_replace(
                                          replace(c.relname, '"', '""'), literal, '\\\1', 'g')) as called
                        from pg_class as c where c.oid = part.key_table) as c
            cross join (select string_agg(regexp_replace(replace(name, '"', '""'), literal, '\\\1', 'g'), '|') as called
                        from unnest(part.key_columns) as name) as k
            where n.nspname not in ('pg_catalog', 'information_schema') and p.prokind in ('f', 'p') and k.called <> ''
              and p.prosrc ~* format('insert\s+into\s+%s(\W|$)', c.called)
            order by 2 desc, 1
        loop
            if item.inserts and value = 'UNKNOWN' then
                value := 'BEFORE'; detail := format('%s inserts it', item.name);
            elsif item.updates and not item.inserts then
                value := 'SAME_CALL';
                detail := format('%s sets it only after it has inserted the row: insert it with the row', item.name);
            end if;
        end loop;
    end if;
    if value = 'UNKNOWN' and counts.staged > 0 and counts.keyed = counts.staged then
        value := 'BEFORE'; detail := format('all of the last %s rows had it', counts.staged);
    end if;
    passed := value = 'BEFORE' and counts.keyed = counts.staged;
    if counts.keyed < counts.staged then
        detail := format('%s; grouping is PARTIAL: %s of the last %s rows had none, and stay single',
                         detail, counts.staged - counts.keyed, counts.staged);
    elsif not passed then
        detail := detail || '; grouping is PARTIAL: rows without it stay single';
    else
        detail := detail || '; grouping is FULL';
    end if;
    return next;
end
$_$;

CREATE FUNCTION outrider.rollup_check_sql(p_spec jsonb) RETURNS TABLE(topic text, passed boolean, value text, detail text, blocks boolean)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $_$
#variable_conflict use_column
declare
    part    constant record := "outrider".rollup_parts(p_spec);
    -- The sub-selects of a plan.
    nested  constant jsonpath := 'strict $.** ? (@."Parent Relationship" == "SubPlan" || @."Parent Relationship" == "InitPlan")';
    absent  jsonb;   -- declared columns that are missing, by table
    samples text[];  -- a row as new, a row as parent
    plan    jsonb;
    lookups jsonb;
    faults  text[];
    item    record;
    line    record;
begin
    topic := 'expressions'; blocks := true;
    begin
        for item in select c ->> 'type' as type from jsonb_array_elements(p_spec -> 'columns') as c loop
            if to_regtype(item.type) is null then
                raise 'type % does not exist', quote_nullable(item.type);
            end if;
        end loop;
        if p_spec ? 'parent' and part.parent is null then
            raise 'there is no table % to look up the parent in', p_spec #>> '{parent,table}';
        end if;
        select coalesce(jsonb_object_agg(missing.source, missing.columns), '{}') into absent
        from (select to_regclass(c ->> 'table')::oid::text as source, jsonb_object_agg(c ->> 'name', c ->> 'type') as columns
              from jsonb_array_elements(p_spec -> 'columns') as c
              where to_regclass(c ->> 'table') is not null and not exists (
                  select from pg_attribute as a where a.attrelid = to_regclass(c ->> 'table')
                    and a.attname = c ->> 'name' and not a.attisdropped)
              group by 1) as missing;
        samples := array(
            select format('(select *%s from %s limit 1) as %s', (
                       select string_agg(format(', null::%s as %I', c.value, c.key), '')
                       from jsonb_each_text(absent -> t.relation::oid::text) as c), t.relation, t.name)
            from (values ('new', coalesce(part.source, '"outrider".outbox'::regclass)),
                         ('parent', part.parent)) as t (name, relation)
            where t.relation is not null order by t.name);
        -- A FOR loop accepts only one statement, and EXPLAIN runs none.
        if part.source is not null and part.condition is not null then
            for item in execute format('explain (format json) select (%s) is true from %s', part.condition, samples[1]) loop
                plan := item."QUERY PLAN";
            end loop;
            if exists (select from jsonb_path_query(plan, nested, '{}', true)) then
                raise 'when is the WHEN of a trigger, which takes no subquery';
            end if;
        end if;
        plan := null;
        for item in execute format(
            'explain (format json) select %s nullif((%s)::text, ''''), nullif((%s)::text, ''''), %s, (%s) is true from %s',
            case when part.parent is not null then
                format('(select true from %s as parent where (%s)),', part.parent, part.parent_on) end,
            part.workspace, part.group_key, part.carried,
            coalesce(case when part.source is null then part.condition end, 'true'), array_to_string(samples, ', ')) loop
            plan := item."QUERY PLAN";
        end loop;
        if p_spec ? 'notify' then
            for item in
                select string_agg(format('(%s)', c.value), ', ') as given,
                       format('insert into %s (%s)', p_spec #>> '{notify,table}', string_agg(format('%I', c.key), ', ')) as target,
                       coalesce(absent -> to_regclass(p_spec #>> '{notify,table}')::oid::text ? c.key, false) as missing
                from jsonb_each_text(p_spec #> '{notify,columns}') as c
                group by missing
            loop
                for line in execute format(
                    'explain %s select %s from (select o.id as event_id, o.event_type, o.workspace_id, '
                    'o.aggregate_id as key, o.payload, 1 as piece_count, o.idempotency_key, o.occurred_at '
                    'from "outrider".outbox as o limit 1) as e %s',
                    case when not item.missing then item.target end, item.given,
                    case when not item.missing then 'on conflict do nothing' end) loop
                    null;
                end loop;
            end loop;
        end if;
        for item in
            select c ->> 'table' as source, c ->> 'check' as condition, t.relname, (
                       select string_agg(format(', null::%s as %I', a.value, a.key), '')
                       from jsonb_each_text(absent -> t.oid::text) as a) as more
            from jsonb_array_elements(p_spec -> 'checks') as c join pg_class as t on t.oid = to_regclass(c ->> 'table')
        loop
            for line in execute format('explain select from (select * %s from %s) as %I where (%s)',
                                       item.more, item.source, item.relname, item.condition) loop
                null;
            end loop;
        end loop;
        passed := true; value := 'VALID'; detail := 'key, condition and columns are valid SQL';
    exception when others then
        passed := false; value := 'INVALID';
        detail := sqlerrm || case when sqlstate <> 'P0001' then
            ': names of your own must be qualified with their schema, columns with new or parent' else '' end;
    end;
    return next;

    if plan is not null then
        topic := 'trigger cost';
        select coalesce(jsonb_agg(distinct node), '[]') into lookups
        from jsonb_path_query(plan, nested, '{}', true) as node
        where jsonb_typeof(node) = 'object';
        faults := array(
            select node ->> 'Node Type' from jsonb_array_elements(lookups) as node
            where node ? 'Plans' or not coalesce((
                -- All columns of the key by equality. Several schemas may have an index of that name.
                select bool_and(i.indisunique and not exists (
                           select from pg_attribute as a
                           where a.attrelid = c.oid and a.attnum <= i.indnkeyatts
                             and node ->> 'Index Cond' !~ format('\(%s\)?(::[^=<>]*)? = (?!ANY)', regexp_replace(
                                     quote_ident(a.attname), '(\W)', '\\\1', 'g'))))
                       and node ? 'Index Cond'
                from pg_class as c join pg_index as i on i.indexrelid = c.oid
                where c.relname = node ->> 'Index Name'), false));
        passed := faults = '{}' and jsonb_array_length(lookups) <= 1;
        value := case when passed then 'O(1)' else 'GROWS' end;
        detail := case when passed then format('one insert, %s look-ups by a unique key', jsonb_array_length(lookups))
                       else format('each row would cost more than one insert and one look-up by a unique key: %s',
                                   coalesce(nullif(array_to_string(faults, ', '), ''),
                                            jsonb_array_length(lookups) || ' look-ups')) end;
        return next;
    end if;
end
$_$;

CREATE FUNCTION outrider.rollup_commands(p_spec jsonb) RETURNS TABLE(command text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
declare
    rollup constant "outrider".rollup := (select r from "outrider".rollup as r where r.name = p_spec ->> 'name');
    part   constant record := "outrider".rollup_parts(p_spec);
    name   constant text := p_spec ->> 'name';
    pinned constant text := 'language plpgsql security definer set search_path = pg_catalog, pg_temp';
    -- The same text for every session that inserts, or one group would become two.
    same   constant text := ' set timezone = ''UTC'' set datestyle = ''ISO'' set intervalstyle = ''postgres'' '
                            'set extra_float_digits = 1 set bytea_output = ''hex''';
    -- The trigger's function. A trial that writes nothing takes no transaction id. The user's own insert succeeds even if an
    -- expression fails.
    stage  constant text := format($function$#variable_conflict use_column
declare
%1$s    outrider_workspace text;
    outrider_key text;
    outrider_carried jsonb;
    outrider_error text;
begin
    begin
%2$s        outrider_workspace := nullif((%3$s)::text, '');
        outrider_key := nullif((%4$s)::text, '');
        outrider_carried := %5$s;
    exception when others then
        outrider_carried := 'null';
        outrider_error := left(sqlstate || ': ' || sqlerrm, 8000);
    end;
    insert into "outrider".rollup_pending (rollup, workspace_id, group_key, carried, set_aside_at, error)
    values (%6$L, outrider_workspace, outrider_key, outrider_carried,
            case when outrider_error is not null then clock_timestamp() end, outrider_error);
    return null;
end$function$,
        case when part.parent is not null then E'    parent record;\n' end,
        case when part.parent is not null then
            format(E'        select parent.* into parent from %s as parent where (%s);\n', part.parent, part.parent_on) end,
        part.workspace, part.group_key, part.carried, name);
    -- The same for events, called by their handler. Locks the rollup's row only against uninstall, which locks it FOR UPDATE.
    stages constant text := format($function$#variable_conflict use_column
begin
    perform from "outrider".rollup as r where r.name = %1$L and r.uninstalled_at is null for key share;
    if not found then
        raise 'the rollup %% is not installed any more', %1$L using errcode = 'OR007';
    end if;
    insert into "outrider".rollup_pending (rollup, workspace_id, group_key, carried)
    select %1$L, nullif((%2$s)::text, ''), nullif((%3$s)::text, ''), %4$s
    from "outrider".outbox as new%5$s where new.seq = any (p_seqs)%6$s order by new.seq;
end$function$,
        name, part.workspace, part.group_key, part.carried,
        case when part.parent is not null then format(' left join %s as parent on (%s)', part.parent, part.parent_on) end,
        coalesce(' and (' || part.condition || ')', ''));
    -- Writes the user's notifications of emitted events.
    notes  constant text := (
        select format($function$#variable_conflict use_column
declare
    noted bigint;
begin
    insert into %s (%s)
    select %s
    from (
        select o.id as event_id, o.event_type, o.workspace_id, o.aggregate_id as key, o.payload,
               coalesce((o.payload ->> 'piece_count')::integer, 1) as piece_count, o.idempotency_key,
               o.occurred_at
        from "outrider".outbox as o where o.seq = any (p_seqs) order by o.seq) as e
    on conflict do nothing;
    get diagnostics noted = row_count;
    return noted;
end$function$,
            p_spec #>> '{notify,table}', string_agg(format('%I', c.key), ', '), string_agg(format('(%s)', c.value), ', '))
        from jsonb_each_text(p_spec #> '{notify,columns}') as c);
    home    constant oid := (select c.relnamespace from pg_class as c where c.oid = '"outrider".rollup'::regclass);
    -- Only intervals that divide an hour, because cron counts from the full hour.
    minutes constant integer := (select max(d) from unnest(array[1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]) as d
                                 where d <= greatest(1, ceil((p_spec ->> 'every')::numeric / 60)));
begin
    return query
    select format('alter table %s add column %I %s', c ->> 'table', c ->> 'name', c ->> 'type')
    from jsonb_array_elements(p_spec -> 'columns') with ordinality as item (c, place)
    where not exists (select from pg_attribute as a where a.attrelid = to_regclass(c ->> 'table')
                        and a.attname = c ->> 'name' and not a.attisdropped)
    order by place;
    return query
    select format('alter table %s drop constraint %I, add constraint %2$I check (%s)%s%s',
                  c ->> 'table', c ->> 'name', c ->> 'check', case when k.connoinherit then ' no inherit' end,
                  case when not k.convalidated then ' not valid' end)
    from jsonb_array_elements(p_spec -> 'checks') with ordinality as item (c, place)
    left join pg_constraint as k on k.conrelid = to_regclass(c ->> 'table') and k.conname = c ->> 'name' and k.contype = 'c'
    where not exists (
        select from jsonb_array_elements(rollup.undo) as u
        where u ->> 'kind' = 'check' and u ->> 'table' = c ->> 'table' and u ->> 'name' = c ->> 'name'
          and u ->> 'check' = c ->> 'check' and u ->> 'after' = pg_get_constraintdef(k.oid))
    order by place;
    -- Objects that an older declaration created elsewhere or in another form.
    return query
    select format('drop trigger %I on %s', t.tgname, t.tgrelid::regclass)
    from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
    where t.tgname = 'outrider_rollup_' || part.slug and t.tgparentid = 0 and t.tgrelid is distinct from part.source
      and p.proname = 'rollup_stage_' || part.slug and p.pronamespace = home;
    return query
    select format('drop function %s', p.oid::regprocedure) from pg_proc as p
    where p.pronamespace = home
      and (p.proname = 'rollup_stage_' || part.slug and (p.pronargs = 0) = (p_spec ->> 'table' is null)
           or p.proname = 'rollup_note_' || part.slug and not p_spec ? 'notify');
    if p_spec ->> 'table' is not null then
        return query values
            (format('create or replace function "outrider".%I() returns trigger %s as %L', 'rollup_stage_' || part.slug,
                    pinned || same, stage)),
            (format('revoke all on function "outrider".%I() from public', 'rollup_stage_' || part.slug)),
            (format('create or replace trigger %I after insert on %s for each row %sexecute function "outrider".%I()',
                    'outrider_rollup_' || part.slug, coalesce(part.source::text, p_spec ->> 'table'),
                    'when (' || part.condition || ') ', 'rollup_stage_' || part.slug));
    else
        return query values
            (format('create or replace function "outrider".%I(p_seqs bigint[]) returns void %s as %L',
                    'rollup_stage_' || part.slug, pinned || same, stages)),
            (format('revoke all on function "outrider".%I(bigint[]) from public', 'rollup_stage_' || part.slug));
        return query
        select format('grant execute on function "outrider".%I(bigint[]) to %s', 'rollup_stage_' || part.slug,
                      a.grantee::regrole)
        from pg_proc as p cross join aclexplode(p.proacl) as a
        where p.oid = '"outrider".rollup_tick(text, boolean)'::regprocedure
          and a.privilege_type = 'EXECUTE' and a.grantee not in (0, p.proowner);
    end if;
    if p_spec ? 'notify' then
        return query values
            (format('create or replace function "outrider".%I(p_seqs bigint[]) returns bigint %s as %L',
                    'rollup_note_' || part.slug, pinned, notes)),
            (format('revoke all on function "outrider".%I(bigint[]) from public', 'rollup_note_' || part.slug));
        return query
        select format('grant execute on function "outrider".%I(bigint[]) to %s', 'rollup_note_' || part.slug,
                      p.proowner::regrole)
        from pg_proc as p
        where p.oid = '"outrider".rollup_tick(text, boolean)'::regprocedure and p.proowner <> current_user::regrole;
    end if;
    if part.scheduler = 'cron' then
        return query values (format('select cron.schedule(%L, %L, %L)', part.job,
            case when minutes = 60 then '0 * * * *' when minutes = 1 then '* * * * *' else format('*/%s * * * *', minutes) end,
            format('select "outrider".rollup_tick(%L)', name)));
    elsif exists (select from pg_extension where extname = 'pg_cron') then
        return query execute
            'select format(''select cron.unschedule(%s)'', j.jobid) from cron.job as j where j.jobname = $1' using part.job;
    end if;
end
$_$;

CREATE TABLE outrider.rollup (
    name text NOT NULL,
    slug text NOT NULL,
    context text NOT NULL,
    spec jsonb NOT NULL,
    scheduler text NOT NULL,
    every interval NOT NULL,
    others jsonb DEFAULT '{}'::jsonb NOT NULL,
    undo jsonb DEFAULT '[]'::jsonb NOT NULL,
    trigger text,
    installed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    uninstalled_at timestamp with time zone,
    ticked_at timestamp with time zone,
    CONSTRAINT rollup_context_check CHECK (((octet_length(context) >= 1) AND (octet_length(context) <= 63))),
    CONSTRAINT rollup_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 63))),
    CONSTRAINT rollup_scheduler_check CHECK ((scheduler = ANY (ARRAY['cron'::text, 'worker'::text])))
)
WITH (fillfactor='50');

COMMENT ON COLUMN outrider.rollup.slug IS 'part of the names of its trigger and functions';

COMMENT ON COLUMN outrider.rollup.scheduler IS 'who ticks: pg_cron, or any worker of its app';

COMMENT ON COLUMN outrider.rollup.others IS 'the other triggers of the source table when this one was installed, each with its fingerprint';

COMMENT ON COLUMN outrider.rollup.undo IS 'what install changed of the user''s: columns that were added, CHECK constraints as they were before';

COMMENT ON COLUMN outrider.rollup.trigger IS 'its definition when it was made';

COMMENT ON COLUMN outrider.rollup.uninstalled_at IS 'its trigger is gone; it stays for rows that wait';

CREATE FUNCTION outrider.rollup_emit(p_rollup outrider.rollup, p_ids bigint[], p_threshold integer, OUT groups_emitted bigint, OUT pieces_emitted bigint, OUT conflicts_skipped bigint, OUT rows_marked bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $_$
declare
    spec  jsonb := p_rollup.spec;
    seqs  bigint[];
    noted bigint;
begin
    with piece as materialized (
        select p.id, p.workspace_id, p.group_key, p.carried, p.staged_at, count(*) over of_group as size,
               min(p.id) over of_group as first
        from unnest(p_ids) as asked (id) join "outrider".rollup_pending as p on p.id = asked.id
        window of_group as (
            partition by p.workspace_id, p.group_key, case when p.group_key is null then p.id end)
    ),
    alike as (
        select field.first, jsonb_object_agg(field.name, field.value) as carried
        from (select piece.first, each.key as name, (array_agg(each.value))[1] as value
              from piece cross join lateral jsonb_each(piece.carried) as each
              where piece.size >= p_threshold
              group by piece.first, each.key, piece.size
              having count(*) = piece.size and count(distinct each.value) = 1) as field
        group by field.first
    ),
    leader as (
        select piece.id, jsonb_object_agg(field.name, piece.carried -> field.carried) as fields
        from piece cross join jsonb_each_text(spec -> 'first') as field (name, carried)
        where piece.id = piece.first and piece.size >= p_threshold
        group by piece.id
    ),
    unit as (
        select piece.id as first, false as grouped, piece.workspace_id, piece.group_key, piece.carried as payload
        from piece where piece.size < p_threshold
        union all
        select whole.first, true, whole.workspace_id, whole.group_key,
               coalesce(alike.carried, '{}') || coalesce(leader.fields, '{}') || jsonb_build_object(
                   'key', whole.group_key, 'piece_count', whole.size, 'first_at', whole.first_at, 'last_at', whole.last_at)
        from (select piece.first, piece.workspace_id, piece.group_key, piece.size, min(piece.staged_at) as first_at,
                     max(piece.staged_at) as last_at
              from piece where piece.size >= p_threshold
              group by piece.first, piece.workspace_id, piece.group_key, piece.size) as whole
        left join alike on alike.first = whole.first
        left join leader on leader.id = whole.first
    ),
    emitted as (
        insert into "outrider".outbox (
            event_type, event_version, source, workspace_id, aggregate_id, payload, idempotency_key)
        select spec ->> case when unit.grouped then 'rollup' else 'single' end,
               (spec ->> case when unit.grouped then 'rollup_version' else 'single_version' end)::integer,
               p_rollup.context, unit.workspace_id, unit.group_key, unit.payload, p_rollup.name || ':' || unit.first
        from unit order by unit.first
        returning seq, id, idempotency_key
    ),
    marked as (
        update "outrider".rollup_pending as p
        set processed_at = clock_timestamp(), event_id = emitted.id
        from piece join emitted
            on emitted.idempotency_key = p_rollup.name || ':'
                                         || case when piece.size >= p_threshold then piece.first else piece.id end
        where p.id = piece.id
        returning piece.id, piece.first, piece.size
    )
    select (select array_agg(emitted.seq) from emitted),
           count(*) filter (where marked.size >= p_threshold and marked.id = marked.first),
           count(*) filter (where marked.size < p_threshold), count(*)
    into seqs, groups_emitted, pieces_emitted, rows_marked
    from marked;
    conflicts_skipped := 0;
    if spec ? 'notify' and seqs is not null then
        execute format('select "outrider".%I($1)', 'rollup_note_' || p_rollup.slug) using seqs into noted;
        conflicts_skipped := cardinality(seqs) - noted;
    end if;
end
$_$;

CREATE FUNCTION outrider.rollup_fault(p_rollup outrider.rollup, p_ids bigint[], p_threshold integer) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform "outrider".rollup_emit(p_rollup, p_ids, p_threshold);
    raise 'undone' using errcode = 'OR008';
exception
    when sqlstate 'OR008' then
        return null;
    when others then
        if "outrider".rollup_is_outage(sqlstate) then
            raise;
        end if;
        return left(sqlstate || ': ' || sqlerrm, 8000);
end
$$;

CREATE FUNCTION outrider.rollup_faulty_groups(p_rollup outrider.rollup, p_ids bigint[], p_ends integer[], p_threshold integer, OUT faulty integer[], OUT undecided integer[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    untried int4range[] := array[int4range(1, cardinality(p_ends), '[]')];  -- the last one is tried next
    low     integer;
    high    integer;
    middle  integer;
begin
    faulty := '{}';
    undecided := '{}';
    while cardinality(untried) > 0 loop
        low := lower(untried[cardinality(untried)]);
        high := upper(untried[cardinality(untried)]) - 1;
        untried := trim_array(untried, 1);
        if "outrider".rollup_fault(p_rollup, "outrider".rollup_rows(p_ids, p_ends, low, high), p_threshold) is null then
            continue;
        elsif cardinality(faulty) >= 200 then
            undecided := undecided || array(select generate_series(low, high));
        elsif low = high then
            faulty := faulty || low;
        else
            middle := (low + high) / 2;
            untried := untried || array[int4range(middle + 1, high, '[]'), int4range(low, middle, '[]')];
        end if;
    end loop;
end
$$;

CREATE FUNCTION outrider.rollup_faulty_rows(p_rollup outrider.rollup, p_ids bigint[], p_threshold integer, OUT faulty bigint[], OUT reason text) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    never   constant integer := 2147483647;     -- with this threshold every row becomes an event of its own
    each    constant integer[] := array(select generate_subscripts(p_ids, 1));
    alone   record;
    failing bigint[];
    rest    bigint[];
begin
    faulty := p_ids;
    reason := "outrider".rollup_fault(p_rollup, p_ids, p_threshold);
    if cardinality(p_ids) = 1 then
        return;
    end if;
    alone := "outrider".rollup_faulty_groups(p_rollup, p_ids, each, never);
    failing := array(select p_ids[place] from unnest(alone.faulty) as place);
    rest := array(select id from unnest(p_ids) as id where id <> all (failing));
    if failing = '{}' or rest = '{}' or alone.undecided <> '{}' then
        return;
    end if;
    if "outrider".rollup_fault(p_rollup, rest, p_threshold) is null then
        faulty := failing;
        reason := "outrider".rollup_fault(p_rollup, failing[1:1], never);
    end if;
end
$$;

CREATE FUNCTION outrider.rollup_install(p_spec jsonb) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
    name     constant text := p_spec ->> 'name';
    part     constant record := "outrider".rollup_parts(p_spec);
    refused  text;
    noted    jsonb;
    command  text;
    commands jsonb := '[]';
begin
    perform from "outrider".rollup as r where r.name = p_spec ->> 'name' for no key update;  -- a tick uses the tables too
    select string_agg(format('%s: %s', p.topic, p.detail), '; ') into refused
    from "outrider".rollup_preflight(p_spec) as p where not p.passed and p.blocks;
    if refused is not null then
        raise '% was not installed: %', name, refused using errcode = 'OR007';
    end if;
    perform "outrider".rollup_lock(p_spec);
    select r.undo into noted from "outrider".rollup as r where r.name = p_spec ->> 'name' for no key update;
    insert into "outrider".rollup as r (name, slug, context, spec, scheduler, every, others, undo)
    values (name, part.slug, p_spec ->> 'context', '{}', part.scheduler, make_interval(secs => (p_spec ->> 'every')::numeric),
            "outrider".rollup_others(part.source), "outrider".rollup_undo(p_spec, noted))
    on conflict on constraint rollup_pkey do update
    set context = excluded.context, scheduler = excluded.scheduler, every = excluded.every, others = excluded.others,
        undo = r.undo || excluded.undo, installed_at = clock_timestamp(), uninstalled_at = null
    where r.context = excluded.context or r.uninstalled_at is not null;
    if not found then
        raise '% was not installed: another context installed a rollup of this name meanwhile', name using errcode = 'OR007';
    end if;
    insert into "outrider".setting as s (name, value, least, greatest)
    values (format('rollup.%s.debounce_seconds', name), (p_spec ->> 'debounce')::bigint, 60, 300),
           (format('rollup.%s.batch_threshold', name), (p_spec ->> 'threshold')::bigint, 2, 50),
           (format('rollup.%s.max_wait_seconds', name), (p_spec ->> 'max_wait')::bigint, 60, 86400)
    on conflict on constraint setting_pkey do update set value = excluded.value, updated_at = now()
    where s.value <> excluded.value;
    for command in select c.command from "outrider".rollup_commands(p_spec) as c loop
        execute command;
        commands := commands || to_jsonb(command);
    end loop;
    update "outrider".rollup as r
    set spec = p_spec,
        trigger = (select pg_get_triggerdef(t.oid) from pg_trigger as t
                   where t.tgrelid = part.source and t.tgname = 'outrider_rollup_' || part.slug),
        undo = "outrider".rollup_undo_made(p_spec, r.undo)
    where r.name = p_spec ->> 'name';
    return jsonb_build_object('name', name, 'scheduler', part.scheduler, 'commands', commands);
end
$$;

CREATE FUNCTION outrider.rollup_is_outage(p_sqlstate text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ select p_sqlstate ~ '^(08|25|40|42|53|55|57|58|XX)' and p_sqlstate <> '42501' $$;

CREATE FUNCTION outrider.rollup_lock(p_spec jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    part constant record := "outrider".rollup_parts(p_spec);
    held record;
begin
    for held in
        select t.relation, case when bool_or(t.altered) then 'access exclusive' else 'share row exclusive' end as mode
        from (select part.source as relation, false as altered where part.source is not null
              union all
              select to_regclass(c ->> 'table'), true
              from jsonb_array_elements(coalesce(p_spec -> 'columns', '[]') || coalesce(p_spec -> 'checks', '[]')) as c
              where exists (select from "outrider".rollup_commands(p_spec) as k
                            where starts_with(k.command, format('alter table %s ', c ->> 'table')))
              union all
              select t.tgrelid, true from pg_trigger as t  -- of an older declaration, on another table
              where t.tgname = 'outrider_rollup_' || part.slug and t.tgparentid = 0 and t.tgrelid is distinct from part.source) as t
        group by t.relation order by t.relation::oid
    loop
        execute format('lock table %s in %s mode', held.relation, held.mode);
    end loop;
end
$$;

CREATE FUNCTION outrider.rollup_others(p_source regclass) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return coalesce((
        select jsonb_object_agg(t.tgname, md5(pg_get_triggerdef(t.oid) || p.prosrc || t.tgenabled::text))
        from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
        where t.tgrelid = p_source and not t.tgisinternal and not starts_with(t.tgname, 'outrider_rollup_')), '{}');
end
$$;

CREATE FUNCTION outrider.rollup_parts(p_spec jsonb, OUT slug text, OUT source regclass, OUT parent regclass, OUT parent_on text, OUT condition text, OUT workspace text, OUT group_key text, OUT carried text, OUT key_table regclass, OUT key_columns text[], OUT scheduler text, OUT job text) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    as_text constant text := case when p_spec ->> 'table' is null then 'new.payload ->> %L' else 'new.%I' end;
    as_json constant text := case when p_spec ->> 'table' is null then 'new.payload -> %L' else 'new.%I' end;
begin
    slug := replace(p_spec ->> 'name', '.', '_');
    source := to_regclass(p_spec ->> 'table');
    parent := to_regclass(p_spec #>> '{parent,table}');
    parent_on := p_spec #>> '{parent,on}';
    condition := p_spec ->> 'when';
    workspace := coalesce(p_spec ->> 'workspace', case when p_spec ->> 'table' is null then 'new.workspace_id'
                                                       else 'current_setting(''app.workspace_id'', true)' end);
    key_table := source;
    if jsonb_typeof(p_spec -> 'key') = 'array' then
        key_columns := array(select jsonb_array_elements_text(p_spec -> 'key'));
        group_key := (select format('coalesce(%s)', string_agg(format('nullif((' || as_text || ')::text, '''')', name), ', '))
                      from unnest(key_columns) as name);
    else
        group_key := p_spec ->> 'key';
        key_columns := array(select lower(word[1]) from regexp_matches(group_key, '\mnew\.(\w+)', 'gi') as word);
        if key_columns = '{}' and parent is not null then
            key_table := parent;
            key_columns := array(select lower(word[1]) from regexp_matches(group_key, '\mparent\.(\w+)', 'gi') as word);
        end if;
    end if;
    -- Names of columns, or of fields with an expression each.
    carried := (select format('jsonb_build_object(%s)', string_agg(format('%L, %s', field.name, field.value), ', '))
                from (select name, format(as_json, name) as value from jsonb_array_elements_text(
                          case jsonb_typeof(p_spec -> 'carry') when 'array' then p_spec -> 'carry' end) as name
                      union all
                      select name, format('(%s)', expression) from jsonb_each_text(
                          case jsonb_typeof(p_spec -> 'carry') when 'object' then p_spec -> 'carry' end)
                          as given (name, expression)) as field);
    scheduler := case when p_spec ->> 'scheduler' <> 'worker' and exists (select from pg_extension where extname = 'pg_cron')
                      then 'cron' else 'worker' end;
    job := format('%s.rollup.%s', trim(both '".' from '"outrider".'), p_spec ->> 'name');
end
$$;

CREATE FUNCTION outrider.rollup_plan(p_name text, p_force boolean DEFAULT false) RETURNS TABLE(step integer, action text, what text, command text, why text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $_$
#variable_conflict use_column
declare
    rollup  constant "outrider".rollup := (select r from "outrider".rollup as r where r.name = p_name);
    home    constant oid := (select c.relnamespace from pg_class as c where c.oid = '"outrider".rollup'::regclass);
    part    record;
    waiting bigint;
    kept    boolean;
    item    record;
    -- How many rows of a table meet a condition, as text; null if none does.
    many    constant text := 'select case count(*) when 0 then null when 1000 then ''1000 or more'' else count(*)::text end '
                             'from (select from %s where %s limit 1000) as rows';
begin
    if rollup.name is null then
        raise 'there is no rollup %', quote_nullable(p_name) using errcode = 'OR007';
    end if;
    part := "outrider".rollup_parts(rollup.spec);
    select count(*) into waiting from "outrider".rollup_pending as p where p.rollup = p_name and p.processed_at is null;
    kept := waiting > 0 and not p_force;
    step := 0;
    if exists (select from pg_extension where extname = 'pg_cron') then
        for item in execute 'select j.jobid, j.jobname from cron.job as j where j.jobname = $1' using part.job loop
            step := step + 1; action := 'do'; what := format('unschedule the job %s of pg_cron', item.jobname);
            command := format('select cron.unschedule(%s)', item.jobid); why := null;
            return next;
        end loop;
    end if;
    for item in
        select t.tgrelid::regclass as source, t.tgname from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
        where t.tgname = 'outrider_rollup_' || part.slug and t.tgparentid = 0
          and p.proname = 'rollup_stage_' || part.slug and p.pronamespace = home
    loop
        step := step + 1; action := 'do'; what := format('drop the trigger on %s', item.source);
        command := format('drop trigger %I on %s', item.tgname, item.source); why := null;
        return next;
    end loop;
    for item in
        select p.oid::regprocedure as name, p.proname = 'rollup_note_' || part.slug and kept as needed from pg_proc as p
        where p.pronamespace = home and p.proname in ('rollup_stage_' || part.slug, 'rollup_note_' || part.slug)
        order by p.proname desc
    loop
        step := step + 1; action := case when item.needed then 'keep' else 'do' end;
        what := format('drop the function %s', item.name);
        command := format('drop function %s', item.name);
        why := case when item.needed then 'the rows that wait need it' end;
        return next;
    end loop;
    for item in select u.entry ->> 'kind' as kind, u.entry ->> 'table' as source, u.entry ->> 'name' as name,
                       u.entry ->> 'before' as before, u.entry ->> 'definition' as definition, u.entry ->> 'after' as after,
                       (u.entry ->> 'oid')::oid as relation
                from jsonb_array_elements(rollup.undo) with ordinality as u (entry, place) order by u.place desc
    loop
        step := step + 1; why := null;
        if item.kind = 'check' then
            what := format('give %s its CHECK constraint %s back as it was', item.source, item.name);
            command := format('alter table %s drop constraint %I, add constraint %2$I %s',
                              item.source, item.name, item.definition);
            if to_regclass(item.source) is distinct from item.relation::regclass then
                why := 'the table is gone';
            elsif item.after is distinct from (select pg_get_constraintdef(k.oid) from pg_constraint as k
                                               where k.conrelid = item.relation and k.conname = item.name) then
                why := 'it was changed since';
            elsif exists (select from "outrider".rollup as r, jsonb_array_elements(r.undo) as u
                          where r.name <> p_name and u ->> 'kind' = 'check' and (u ->> 'oid')::oid = item.relation
                            and u ->> 'name' = item.name and u ->> 'definition' = item.after) then
                why := 'another rollup was installed upon it';
            elsif kept then
                why := 'the rows that wait may need it';
            else
                execute format(many, item.source, format('not (%s)', item.before)) into why;
                why := why || ' rows would violate it';
            end if;
        else
            what := format('drop the column %s.%s', item.source, item.name);
            command := format('alter table %s drop column %I', item.source, item.name);
            if to_regclass(item.source) is distinct from item.relation::regclass
               or not exists (select from pg_attribute as a where a.attrelid = item.relation
                                and a.attname = item.name and not a.attisdropped) then
                why := 'it is gone already';
            elsif exists (select from pg_attribute as a where a.attrelid = item.relation and a.attname = item.name
                            and (a.attnotnull or a.atthasdef)) then
                why := 'it was changed since';
            elsif kept and rollup.spec #> '{notify,columns}' ? item.name
                  and to_regclass(rollup.spec #>> '{notify,table}') = to_regclass(item.source) then
                why := 'the rows that wait need it';
            else
                execute format(many, item.source, format('%I is not null', item.name)) into why;
                why := why || ' rows hold data in it';
            end if;
            if why is null then
                select 'functions name it: ' || string_agg(p.oid::regprocedure::text, ', ' order by 1) into why from pg_proc as p
                where p.prosrc ~ format('(^|\W)%s(\W|$)', regexp_replace(
                          replace(item.name, '"', '""'), '(\W)', '\\\1', 'g'))
                  and not (p.pronamespace = home and (
                          p.proname in ('rollup_stage_' || part.slug, 'rollup_note_' || part.slug)
                          or p.proname !~ '^rollup_(stage|note)_'))
                  and p.pronamespace <> 'pg_catalog'::regnamespace;
            end if;
            if why is null then
                select 'it is needed: ' || string_agg(distinct pg_describe_object(d.classid, d.objid, d.objsubid), ', ') into why
                from pg_depend as d join pg_attribute as a
                    on a.attrelid = d.refobjid and a.attnum = d.refobjsubid and a.attname = item.name
                where d.refclassid = 'pg_class'::regclass and d.refobjid = to_regclass(item.source) and d.deptype = 'n'
                  and not (d.classid = 'pg_trigger'::regclass and exists (
                          select from pg_trigger as t where t.oid = d.objid
                            and t.tgname = 'outrider_rollup_' || part.slug));
            end if;
        end if;
        action := case when why is null then 'do' else 'keep' end;
        return next;
    end loop;
    if rollup.spec ->> 'table' is null then
        step := step + 1; action := 'keep'; what := format('retire the subscription %s', p_name); command := null;
        why := format('take it out of the app, then outrider subscription retire %s', p_name);
        return next;
    end if;
    step := step + 1; action := case when kept then 'keep' else 'do' end;
    what := format('delete its rows: %s wait', waiting);
    command := format(
        'with gone as (delete from "outrider".rollup_pending where rollup = %1$L), '
        'told as (delete from "outrider".setting where name in (%2$L, %3$L, %4$L)) '
        'delete from "outrider".rollup where name = %1$L', p_name, format('rollup.%s.debounce_seconds', p_name),
        format('rollup.%s.batch_threshold', p_name), format('rollup.%s.max_wait_seconds', p_name));
    why := case when kept then format('outrider rollup run %s --flush emits what waits; --force deletes it', p_name) end;
    return next;
end
$_$;

CREATE FUNCTION outrider.rollup_preflight(p_spec jsonb) RETURNS TABLE(topic text, passed boolean, value text, detail text, blocks boolean)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
declare
    aggregates constant text := '\m(count|sum|avg|min|max|\w+_agg)\s*\(|\mgroup\s+by\M|\mjoin\M';
    part       constant record := "outrider".rollup_parts(p_spec);
    rollup     constant "outrider".rollup := (select r from "outrider".rollup as r where r.name = p_spec ->> 'name');
    here       constant boolean := rollup.name is not null and rollup.uninstalled_at is null;
    notified   constant regclass := to_regclass(p_spec #>> '{notify,table}');
    our_schema constant oid := (select c.relnamespace from pg_class as c where c.oid = '"outrider".rollup'::regclass);
    -- Checks replace constraints, columns are added where they are missing.
    changes    constant jsonb := coalesce(p_spec -> 'checks', '[]') || coalesce(p_spec -> 'columns', '[]');
    item     record;
    faults   text[];
    counts   record;
    settings record;
    loaded   boolean;
    served   text;
    doubled  boolean;
    theirs   boolean;
begin
    -- Where do rows come from?
    topic := 'source'; blocks := true;
    if coalesce(p_spec ->> 'name' !~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$', true)
       or octet_length(p_spec ->> 'name') > 47 then
        passed := false; value := 'NO_NAME';
        detail := format('a rollup cannot be called %s: only lower-case words joined by dots, of at most 47 bytes',
                         quote_nullable(p_spec ->> 'name'));
        return next;
        return;
    elsif p_spec ->> 'table' is null then
        passed := true; value := 'EVENTS';
        detail := 'staged by a worker as it handles ' || array_to_string(array(
            select jsonb_array_elements_text(p_spec -> 'events')), ', ');
    elsif part.source is null then
        passed := false; value := 'MISSING';
        detail := format('there is no table %s: create it first, and name its schema', p_spec ->> 'table');
        return next;
        return;
    elsif (select c.relkind not in ('r', 'p') from pg_class as c where c.oid = part.source) then
        passed := false; value := 'NO_TABLE'; detail := format('%s is no table: a trigger for each row needs one', part.source);
        return next;
        return;
    elsif (select c.relnamespace from pg_class as c where c.oid = part.source) = our_schema then
        passed := false; value := 'OURS'; detail := format('%s is Outrider''s own: it would feed itself', part.source);
        return next;
        return;
    else
        passed := has_table_privilege(part.source, 'trigger');
        value := case when passed then 'TABLE' else 'FORBIDDEN' end;
        detail := case when passed then part.source::text else format(
            'user %s may not make a trigger on %s: run this as its owner, or grant trigger on it', current_user, part.source) end;
        if passed and (select c.relkind = 'p' from pg_class as c where c.oid = part.source) then
            value := 'PARTITIONED';
            detail := format('%s; a row that an UPDATE moves to another partition counts as a new one', part.source);
        end if;
    end if;
    return next;

    -- Its functions run as the installer, on tables whose owner decides what their triggers and types do.
    topic := 'rights'; blocks := true;
    faults := array(
        select format('user %s may not %s, which its functions do in their name', current_user, needed.what)
        from (values ('insert into rollup_pending', has_table_privilege('"outrider".rollup_pending', 'insert')),
                     ('read the log', has_table_privilege('"outrider".outbox', 'select')
                                      or p_spec ->> 'table' is not null and not p_spec ? 'notify'),
                     ('call rollup_tick, as pg_cron shall', part.scheduler <> 'cron' or has_function_privilege(
                          '"outrider".rollup_tick(text, boolean)', 'execute'))) as needed (what, holds)
        where not needed.holds);
    if faults = '{}' then
        select array_agg(format('%s belongs to %s', c.oid::regclass, c.relowner::regrole)), bool_or(me.rolsuper and not r.rolsuper)
        into faults, loaded
        from pg_class as c join pg_roles as r on r.oid = c.relowner cross join pg_roles as me
        where c.oid in (part.source, part.parent, notified) and me.rolname = current_user
          and c.relowner <> me.oid;
        passed := faults is null; blocks := coalesce(loaded, false);
        value := case when passed then 'OWNER' else 'ANOTHERS' end;
        detail := case when passed then 'by the owner of the tables' else format(
            '%s, and what is made would run as %s on every insert: triggers and types of that owner would have these rights; '
            'install as the owner', array_to_string(faults, ', '), current_user) end;
    else
        passed := false; value := 'MISSING'; detail := array_to_string(faults, '; ');
    end if;
    return next;

    -- Who will tick?
    topic := 'pg_cron'; blocks := true;
    -- Not every role may read these settings; but a setting that does not exist is null for every role.
    begin
        loaded := current_setting('shared_preload_libraries') ~ '\mpg_cron\M';
        served := coalesce(current_setting('cron.database_name', true), 'postgres');
    exception when insufficient_privilege then
        begin
            loaded := current_setting('cron.database_name', true) is not null;
        exception when insufficient_privilege then
            loaded := true;
        end;
    end;
    value := case
        when exists (select from pg_extension where extname = 'pg_cron') then 'INSTALLED'
        when not exists (select from pg_available_extensions where name = 'pg_cron') then 'NOT_AVAILABLE'
        when not loaded then 'NEEDS_PRELOAD'
        else 'AVAILABLE' end;
    passed := value = 'INSTALLED' or p_spec ->> 'scheduler' <> 'pg_cron';
    detail := case value
        when 'INSTALLED' then case when part.scheduler = 'cron' then 'pg_cron ticks, workers do not'
                                   else 'the worker ticks, as declared; pg_cron does not' end
        when 'NOT_AVAILABLE' then 'the server has no pg_cron: workers tick'
        when 'NEEDS_PRELOAD' then 'add pg_cron to shared_preload_libraries and restart the server, then create extension '
                                  'pg_cron; until then workers tick'
        else case when coalesce(served, current_database()) = current_database()
                  then 'create extension pg_cron to have it tick; until then workers tick'
                  else format('pg_cron serves the database %s (cron.database_name): it can tick here only if that is %s; '
                              'until then workers tick', served, current_database()) end end;
    return next;

    -- Do rows of an earlier installation wait?
    topic := 'staging'; blocks := false;
    select count(*) filter (where p.set_aside_at is null) as waiting, count(p.set_aside_at) as aside into counts
    from "outrider".rollup_pending as p where p.rollup = p_spec ->> 'name' and p.processed_at is null;
    value := case when here then 'PRESENT' else 'ABSENT' end;
    passed := counts.aside = 0;
    detail := format('%s rows wait, %s are set aside', counts.waiting, counts.aside)
        || case when passed then '' else ': see why in rollup_pending.error, then outrider rollup run --retry' end;
    return next;

    -- Is the name of the trigger free, or its trigger ours?
    topic := 'trigger'; blocks := true;
    select t.tgenabled, p.proname into item
    from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
    where t.tgrelid = part.source and t.tgname = 'outrider_rollup_' || part.slug;
    value := case when not found then 'ABSENT' when item.proname <> 'rollup_stage_' || part.slug or not here then 'FOREIGN'
                  when item.tgenabled = 'D' then 'DISABLED' else 'PRESENT' end;
    doubled := exists (select from "outrider".rollup as r where r.slug = part.slug and r.name <> p_spec ->> 'name');
    theirs := here and rollup.context <> p_spec ->> 'context';
    passed := value <> 'FOREIGN' and not doubled and not theirs;
    detail := case
        when theirs then format('the context %s has installed a rollup of this name: choose another name, or uninstall that one '
                                'first: outrider rollup uninstall %s', rollup.context, rollup.name)
        when doubled then format('another rollup has the same short name, %s: choose another name', part.slug)
        when value = 'FOREIGN' then format('%s has a trigger outrider_rollup_%s that no installed rollup knows: drop it, or '
                                           'choose another name', part.source, part.slug)
        when p_spec ->> 'table' is null then 'none is needed for events'
        when value = 'PRESENT' then format('outrider_rollup_%s on %s', part.slug, part.source)
        when value = 'DISABLED' then format('alter table %s enable trigger outrider_rollup_%s', part.source, part.slug)
        else format('outrider_rollup_%s will be made on %s', part.slug, part.source) end;
    return next;

    -- Other triggers of the table, which stay as they are: are they costly, or changed since the rollup was installed?
    topic := 'other triggers'; blocks := false;
    select array_agg(format('%s (%s)', t.tgname, p.oid::regproc) order by t.tgname) filter (
               where t.tgtype & 1 = 1 and p.prosrc ~* aggregates) as costly,
           count(*) as many into item
    from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
    where t.tgrelid = part.source and not t.tgisinternal and not starts_with(t.tgname, 'outrider_rollup_');
    faults := array(
        select coalesce(was.key, has.key) from jsonb_each(case when here then rollup.others end) as was
        full join jsonb_each(case when here then "outrider".rollup_others(part.source) end) as has on has.key = was.key
        where was.value is distinct from has.value order by 1);
    passed := item.costly is null and faults = '{}';
    value := case when faults <> '{}' then 'CHANGED' when item.costly is not null then 'COSTLY'
                  when item.many = 0 then 'NONE' else 'UNTOUCHED' end;
    detail := case value
        when 'CHANGED' then format('not as they were when the rollup was installed: %s; outrider rollup install takes note '
                                   'of them', array_to_string(faults, ', '))
        when 'COSTLY' then format('for each row these seem to count, join or aggregate: %s', array_to_string(item.costly, ', '))
        else format('%s others, left alone', item.many) end;
    return next;

    -- The settings in force, or complaints about them.
    topic := 'settings'; blocks := false;
    settings := "outrider".rollup_settings(p_spec ->> 'name');
    passed := settings.complaints = '{}';
    value := case when passed then 'OK' else 'ADJUSTED' end;
    detail := case
        when not passed then array_to_string(settings.complaints, '; ')
        when here then format('debounce %s, threshold %s, longest wait %s', settings.debounce, settings.threshold, settings.max_wait)
        else format('debounce %s, threshold %s, longest wait %s', coalesce((p_spec ->> 'debounce') || ' s', settings.debounce::text),
                    coalesce(p_spec ->> 'threshold', settings.threshold::text),
                    coalesce((p_spec ->> 'max_wait') || ' s', settings.max_wait::text)) end;
    return next;

    -- Can constraints be replaced and columns be added as declared?
    topic := 'constraints'; blocks := true;
    begin
        faults := array(
            select format('%s has no CHECK constraint %s (it has: %s)', c ->> 'table', c ->> 'name', coalesce((
                       select string_agg(k.conname, ', ' order by k.conname) from pg_constraint as k
                       where k.conrelid = to_regclass(c ->> 'table') and k.contype = 'c'), 'none'))
            from jsonb_array_elements(p_spec -> 'checks') as c
            where not exists (select from pg_constraint as k where k.conrelid = to_regclass(c ->> 'table')
                                and k.conname = c ->> 'name' and k.contype = 'c')
            union all
            select format('user %s does not own %s, whose constraint or column shall change', current_user, c ->> 'table')
            from jsonb_array_elements(changes) as c
            join pg_class as t on t.oid = to_regclass(c ->> 'table')
            where not pg_has_role(t.relowner, 'usage')
            union all
            select format('%s.%s is %s, not %s', c ->> 'table', c ->> 'name', format_type(a.atttypid, a.atttypmod), c ->> 'type')
            from jsonb_array_elements(p_spec -> 'columns') as c
            join pg_attribute as a on a.attrelid = to_regclass(c ->> 'table') and a.attname = c ->> 'name' and not a.attisdropped
            where a.atttypid is distinct from to_regtype(c ->> 'type')
            union all
            select format('there is no table %s', c ->> 'table')
            from jsonb_array_elements(changes) as c
            where to_regclass(c ->> 'table') is null);
    exception when others then
        faults := array[sqlerrm];
    end;
    passed := faults = '{}';
    value := case when not passed then 'UNEXPECTED' when here then 'IN_PLACE' else 'AS_EXPECTED' end;
    detail := case when passed then format(case when here then '%s CHECK constraints are declared, %s columns are missing'
                                                else 'CHECK constraints to replace: %s, columns to add: %s' end,
        coalesce(jsonb_array_length(p_spec -> 'checks'), 0), (
            select count(*) from jsonb_array_elements(p_spec -> 'columns') as c
            where not exists (select from pg_attribute as a where a.attrelid = to_regclass(c ->> 'table')
                                and a.attname = c ->> 'name' and not a.attisdropped)))
        else array_to_string(faults, '; ') end;
    return next;

    return query select c.* from "outrider".rollup_check_sql(p_spec) as c;
    return query select c.* from "outrider".rollup_check_key(p_spec) as c;

    if p_spec ? 'notify' then
        -- Can the user's notification table take a row per event, and does it skip a second one?
        topic := 'notification'; blocks := false;
        select array_agg(a.attname) into faults from pg_attribute as a
        where a.attrelid = notified and a.attnum > 0 and not a.attisdropped and a.attnotnull
          and not a.atthasdef and a.attidentity = '' and a.attgenerated = '' and not p_spec #> '{notify,columns}' ? a.attname;
        select string_agg(i.indexrelid::regclass::text, ', ') as keys into item from pg_index as i
        where i.indrelid = notified and i.indisunique and not i.indimmediate;
        if faults is not null or item.keys is not null or notified = part.source
           or (select c.relnamespace from pg_class as c where c.oid = notified) = our_schema then
            passed := false; blocks := true; value := 'UNFIT';
            detail := case
                when faults is not null then format('these columns of %s must not be null, and get nothing: %s',
                                                    p_spec #>> '{notify,table}', array_to_string(faults, ', '))
                when item.keys is not null then format('%s can be deferred, which ON CONFLICT does not take', item.keys)
                else format('%s would feed the rollup itself', p_spec #>> '{notify,table}') end;
            return next;
            return;
        end if;
        passed := exists (select from pg_index as i where i.indrelid = notified
                            and i.indisunique and (not i.indisprimary or not exists (
                                select from pg_attribute as a where a.attrelid = i.indrelid and a.attnum = any (i.indkey)
                                  and (a.attidentity <> '' or a.atthasdef))));
        value := case when passed then 'UNIQUE' else 'NO_UNIQUE_KEY' end;
        detail := case when passed then format('a second row of the same kind in %s is skipped and counted', p_spec #>> '{notify,table}')
                       else format('%s has no unique key that ON CONFLICT could find', p_spec #>> '{notify,table}') end;
        return next;
    end if;
end
$_$;

CREATE FUNCTION outrider.rollup_retry(p_name text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    back bigint;
begin
    if not exists (select from "outrider".rollup as r where r.name = p_name) then
        raise 'there is no rollup %', quote_nullable(p_name) using errcode = 'OR007';
    end if;
    update "outrider".rollup_pending as p set set_aside_at = null, error = null
    where p.rollup = p_name and p.processed_at is null and p.set_aside_at is not null;
    get diagnostics back = row_count;
    perform "outrider".note('rollup_retry', p_by, p_reason, null, null, jsonb_build_object('rollup', p_name, 'rows', back));
    return back;
end
$$;

CREATE FUNCTION outrider.rollup_rows(p_ids bigint[], p_ends integer[], p_first integer, p_last integer) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (p_ids)[(COALESCE((p_ends)[(p_first - 1)], 0) + 1):(p_ends)[p_last]];

CREATE FUNCTION outrider.rollup_run(p_name text, p_flush boolean DEFAULT false, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    set constraints all immediate;  -- as in rollup_tick, with the caller's rights
    return "outrider".rollup_work_noted(p_name, p_flush, p_by, p_reason);
end
$$;

CREATE FUNCTION outrider.rollup_settings(p_name text, OUT debounce interval, OUT threshold integer, OUT max_wait interval, OUT complaints text[]) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    item  record;
    asked numeric;
    given bigint;
begin
    complaints := '{}';
    for item in
        select known.suffix, s.name, coalesce(s.value, known.value) as value, s.entered,
               coalesce(s.least, known.least) as least, coalesce(s.greatest, known.greatest) as greatest
        from (values ('debounce_seconds', 90, 60, 300), ('batch_threshold', 2, 2, 50),
                     ('max_wait_seconds', 600, 60, 86400)) as known (suffix, value, least, greatest)
        left join "outrider".setting as s on s.name = 'rollup.' || p_name || '.' || known.suffix
    loop
        given := item.value;
        if item.entered ~ '^[[:space:]]*[+-]?[0-9]{1,18}[[:space:]]*$' then
            asked := item.entered::numeric;
            given := greatest(item.least, least(item.greatest, asked));
            if given <> asked then
                complaints := complaints || format('the setting %s is %s: %s is used, the limits are %s and %s',
                                                   item.name, trim(item.entered), given, item.least, item.greatest);
            end if;
        elsif item.entered is not null then
            complaints := complaints || format('the setting %s is %L, which is no whole number: the default, %s, is used',
                                               item.name, left(item.entered, 100), given);
        end if;
        case item.suffix
            when 'debounce_seconds' then debounce := make_interval(secs => given);
            when 'batch_threshold' then threshold := given;
            else max_wait := make_interval(secs => given);
        end case;
    end loop;
    max_wait := greatest(max_wait, debounce);
end
$_$;

CREATE FUNCTION outrider.rollup_sift(p_rollup outrider.rollup, p_ids bigint[], p_ends integer[], p_threshold integer, OUT good bigint[], OUT aside bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    groups   constant record := "outrider".rollup_faulty_groups(p_rollup, p_ids, p_ends, p_threshold);
    place    integer;
    fault    record;
    reason   text;
    left_out bigint[] := '{}';
begin
    foreach place in array groups.faulty loop
        fault := "outrider".rollup_faulty_rows(p_rollup, "outrider".rollup_rows(p_ids, p_ends, place, place), p_threshold);
        update "outrider".rollup_pending as p set set_aside_at = clock_timestamp(), error = fault.reason
        where p.id = any (fault.faulty);
        left_out := left_out || fault.faulty;
        reason := coalesce(reason, fault.reason);
    end loop;
    aside := cardinality(left_out);
    foreach place in array groups.undecided loop
        left_out := left_out || "outrider".rollup_rows(p_ids, p_ends, place, place);
    end loop;
    good := array(select id from unnest(p_ids) as id where id <> all (left_out));
    if good = '{}' and cardinality(p_ends) > 10 then
        -- Some of the undecided groups may be good: try twenty, from all over.
        for place in select distinct cardinality(p_ends) - n * cardinality(p_ends) / 20 from generate_series(0, 19) as n loop
            if "outrider".rollup_fault(p_rollup, "outrider".rollup_rows(p_ids, p_ends, place, place), p_threshold) is null then
                return;
            end if;
        end loop;
        raise 'nothing could be emitted, so the rows are not to blame: %', reason using errcode = 'OR007';
    end if;
end
$$;

CREATE FUNCTION outrider.rollup_tick(p_name text, p_flush boolean DEFAULT false) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    set constraints all immediate;  -- the caller's deferred checks fail here, as its own error; those of the emission run at once
    return "outrider".rollup_work(p_name, p_flush);
end
$$;

CREATE FUNCTION outrider.rollup_undo(p_spec jsonb, p_noted jsonb) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with change as (
        select 'column' as kind, c ->> 'table' as source, c ->> 'name' as name, place,
               c || jsonb_build_object('kind', 'column', 'oid', to_regclass(c ->> 'table')::oid::bigint) as note
        from jsonb_array_elements(p_spec -> 'columns') with ordinality as item (c, place)
        where not exists (select from pg_attribute as a where a.attrelid = to_regclass(c ->> 'table')
                            and a.attname = c ->> 'name' and not a.attisdropped)
        union all
        select 'check', c ->> 'table', c ->> 'name', place,
               c || jsonb_build_object('kind', 'check', 'oid', k.conrelid::bigint, 'definition', pg_get_constraintdef(k.oid),
                                       'before', pg_get_expr(k.conbin, k.conrelid))
        from jsonb_array_elements(p_spec -> 'checks') with ordinality as item (c, place)
        join pg_constraint as k on k.conrelid = to_regclass(c ->> 'table') and k.conname = c ->> 'name'
    )
    select coalesce(jsonb_agg(change.note order by change.kind = 'check', change.place), '[]') from change
    where not exists (
        select from jsonb_array_elements(p_noted) as noted
        where noted ->> 'kind' = change.kind and noted ->> 'table' = change.source and noted ->> 'name' = change.name)
$$;

CREATE FUNCTION outrider.rollup_undo_made(p_spec jsonb, p_noted jsonb) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select coalesce(jsonb_agg(case when made.c is null then noted.note else noted.note || jsonb_build_object(
                                  'check', made.c ->> 'check', 'after', pg_get_constraintdef(k.oid)) end order by noted.place), '[]')
    from jsonb_array_elements(p_noted) with ordinality as noted (note, place)
    left join jsonb_array_elements(p_spec -> 'checks') as made (c)
        on noted.note ->> 'kind' = 'check' and made.c ->> 'table' = noted.note ->> 'table' and made.c ->> 'name' = noted.note ->> 'name'
    left join pg_constraint as k on k.conrelid = to_regclass(made.c ->> 'table') and k.conname = made.c ->> 'name'
$$;

CREATE FUNCTION outrider.rollup_uninstall(p_name text, p_force boolean DEFAULT false) RETURNS TABLE(step integer, action text, what text, command text, why text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
#variable_conflict use_column
declare
    held    regclass;
    planned record;
    steps   jsonb;
begin
    perform from "outrider".rollup as r where r.name = p_name for update;  -- against ticks and against staging events
    for held in
        select t.tgrelid::regclass from pg_trigger as t, "outrider".rollup as r
        where r.name = p_name and t.tgname = 'outrider_rollup_' || r.slug and t.tgparentid = 0
        union
        select to_regclass(u ->> 'table') from "outrider".rollup as r, jsonb_array_elements(r.undo) as u
        where r.name = p_name and to_regclass(u ->> 'table') is not null
        order by 1
    loop
        execute format('lock table %s in access exclusive mode', held);
    end loop;
    select jsonb_agg(to_jsonb(p) order by p.step) into steps from "outrider".rollup_plan(p_name, p_force) as p;
    for planned in select s.* from jsonb_to_recordset(steps) as s (
                       step integer, action text, what text, command text, why text) order by s.step loop
        if planned.action = 'do' then
            execute planned.command;
        end if;
    end loop;
    update "outrider".rollup as r set uninstalled_at = clock_timestamp() where r.name = p_name;
    return query select s.* from jsonb_to_recordset(steps) as s (
        step integer, action text, what text, command text, why text) order by s.step;
end
$$;

CREATE FUNCTION outrider.rollup_verify(p_name text) RETURNS TABLE(topic text, passed boolean, value text, detail text, blocks boolean)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
declare
    rollup constant "outrider".rollup := (select r from "outrider".rollup as r where r.name = p_name);
    part   record;
    faults  text[];
    jobs   bigint;
    failed text;
begin
    if rollup.name is null then
        raise 'there is no rollup %', quote_nullable(p_name)
            using errcode = 'OR007', hint = 'outrider rollup install makes one.';
    end if;
    part := "outrider".rollup_parts(rollup.spec);
    return query select p.* from "outrider".rollup_preflight(rollup.spec) as p;

    topic := 'installed'; blocks := true;
    faults := array(
        select format('the function %s is missing', wanted.name)
        from (values ('rollup_stage_' || part.slug, true), ('rollup_note_' || part.slug, rollup.spec ? 'notify')) as wanted (name, needed)
        where wanted.needed and not exists (
            select from pg_proc as p where p.proname = wanted.name and p.pronamespace = (
                select c.relnamespace from pg_class as c where c.oid = '"outrider".rollup'::regclass))
        union all
        select format('the trigger outrider_rollup_%s is missing or disabled: nothing is staged', part.slug)
        where rollup.spec ->> 'table' is not null and not exists (
            select from pg_trigger as t where t.tgrelid = part.source and t.tgname = 'outrider_rollup_' || part.slug
              and t.tgenabled in ('O', 'A'))
        union all
        select format('the trigger outrider_rollup_%s is not as it was made: %s', part.slug, pg_get_triggerdef(t.oid))
        from pg_trigger as t where t.tgrelid = part.source and t.tgname = 'outrider_rollup_' || part.slug
          and pg_get_triggerdef(t.oid) <> rollup.trigger
        union all
        select format('the trigger outrider_rollup_%s is disabled on %s', part.slug, t.tgrelid::regclass)
        from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
        where t.tgname = 'outrider_rollup_' || part.slug and t.tgparentid <> 0 and t.tgenabled not in ('O', 'A')
          and p.proname = 'rollup_stage_' || part.slug
        union all
        select format('the CHECK constraint %s of %s is not as it was made', u ->> 'name', u ->> 'table')
        from jsonb_array_elements(rollup.undo) as u
        where u ->> 'kind' = 'check' and not exists (
            select from pg_constraint as k where k.conrelid = to_regclass(u ->> 'table') and k.conname = u ->> 'name'
              and pg_get_constraintdef(k.oid) = u ->> 'after')
        union all
        select format('the function %s is not as it was made', p.proname) from pg_proc as p
        where p.proname in ('rollup_stage_' || part.slug, 'rollup_note_' || part.slug)
          and p.pronamespace = (select c.relnamespace from pg_class as c where c.oid = '"outrider".rollup'::regclass)
          and not exists (select from "outrider".rollup_commands(rollup.spec) as c
                          where starts_with(c.command, format('create or replace function "outrider".%I(', p.proname))
                            and right(c.command, length(quote_literal(p.prosrc)) + 4) = ' as ' || quote_literal(p.prosrc)));
    passed := faults = '{}' and rollup.uninstalled_at is null;
    value := case when passed then 'COMPLETE' when rollup.uninstalled_at is not null then 'UNINSTALLED' else 'BROKEN' end;
    detail := case value when 'COMPLETE' then 'since ' || rollup.installed_at
                         when 'UNINSTALLED' then 'it is here only for rows that wait'
                         else array_to_string(faults, '; ') || ': run outrider rollup install' end;
    return next;

    topic := 'functions';
    faults := array(
        select format('%s %s', p.oid::regprocedure, wrong.what)
        from pg_proc as p cross join lateral (values
            ('is not SECURITY DEFINER', not p.prosecdef),
            ('has no pinned search_path', not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)),
            ('may be called by everybody', has_function_privilege('public', p.oid, 'execute'))) as wrong (what, holds)
        where p.proname in ('rollup_stage_' || part.slug, 'rollup_note_' || part.slug) and wrong.holds
          and p.pronamespace = (select c.relnamespace from pg_class as c where c.oid = '"outrider".rollup'::regclass));
    passed := faults = '{}';
    value := case when passed then 'PINNED' else 'OPEN' end;
    detail := case when passed then 'SECURITY DEFINER, pinned search_path, revoked from PUBLIC'
                   else array_to_string(faults, '; ') || ': run outrider rollup install' end;
    return next;

    topic := 'schedule'; blocks := false; jobs := 0;
    if exists (select from pg_extension where extname = 'pg_cron') then
        execute 'select count(*) from cron.job as j where j.jobname = $1 and j.active' into jobs using part.job;
        execute 'select d.return_message from cron.job_run_details as d join cron.job as j on j.jobid = d.jobid '
                'where j.jobname = $1 and d.status = ''failed'' and d.runid = ('
                'select max(o.runid) from cron.job_run_details as o where o.jobid = d.jobid and o.end_time is not null)'
            into failed using part.job;
    end if;
    passed := jobs = case rollup.scheduler when 'cron' then 1 else 0 end and failed is null;
    value := upper(rollup.scheduler);
    detail := case
        when failed is not null then 'its last run by pg_cron failed: ' || failed
        when passed and jobs = 1 then format('pg_cron runs the job %s', part.job)
        when passed then 'the workers of its app tick'
        when rollup.scheduler = 'worker' then format('pg_cron has a job %s although workers tick: unschedule it', part.job)
        else format('pg_cron has %s active jobs %s instead of one: run outrider rollup install', jobs, part.job) end;
    return next;
end
$_$;

CREATE FUNCTION outrider.rollup_work(p_name text, p_flush boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    began    timestamptz := clock_timestamp();
    rollup   "outrider".rollup;
    settings record;
    allowed  bigint := (select s.value from "outrider".setting as s where s.name = 'payload_max_bytes');
    ids      bigint[];
    ends     integer[];
    wrong    bigint[];
    reasons  text[];
    most     constant integer := 200000;  -- rows per tick; the rest waits for the next
    sifted   record;
    figures  record;
    aside    bigint := 0;
    run      "outrider".rollup_log;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'rollup_tick needs a READ COMMITTED transaction, this one is %', current_setting('transaction_isolation')
            using errcode = 'OR007';
    end if;
    select r.* into rollup from "outrider".rollup as r where r.name = p_name for no key update skip locked;
    if not found then
        if exists (select from "outrider".rollup as r where r.name = p_name) then
            return jsonb_build_object('result', 'skipped', 'reason', 'lock_held');
        end if;
        raise 'there is no rollup %', quote_nullable(p_name)
            using errcode = 'OR007', hint = 'outrider rollup install makes one.';
    end if;
    settings := "outrider".rollup_settings(p_name);
    run.result := 'idle';
    run.groups_emitted := 0;
    run.pieces_emitted := 0;
    run.conflicts_skipped := 0;
    run.rows_marked := 0;
    run.error_count := cardinality(settings.complaints);
    run.error_text := nullif(array_to_string(settings.complaints, '; '), '');
    select count(*) into run.pending_pre from "outrider".rollup_pending as p
    where p.rollup = p_name and p.processed_at is null and p.set_aside_at is null;

    begin
        -- Ids sorted by group, and where each group ends. Malformed rows are found without a trial.
        with waiting as (
            select w.*, min(w.id) over of_group as leader, max(w.staged_at) over of_group as newest,
                   min(w.staged_at) over of_group as oldest
            from "outrider".rollup_pending as w
            where w.rollup = p_name and w.processed_at is null and w.set_aside_at is null
            window of_group as (
                partition by w.workspace_id, w.group_key, case when w.group_key is null then w.id end)
        ),
        due as materialized (
            select p.id, p.leader, case
                       when jsonb_typeof(p.carried) <> 'object' then 'what it carries is no JSON object'
                       when said.bytes > allowed or said.bytes = 0 then
                           format('it carries %s bytes, the limit is %s',
                                  coalesce(nullif(said.bytes, 0)::text, 'more than 134217728'), allowed)
                       when octet_length(p.group_key) not between 1 and 512 then
                           format('its key has %s bytes, 1 to 512 are allowed', octet_length(p.group_key))
                       when octet_length(p.workspace_id) not between 1 and 255 then
                           format('its workspace has %s bytes, 1 to 255 are allowed', octet_length(p.workspace_id))
                       when p.staged_at not between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z' then
                           format('it was staged at %s, which no event can say', p.staged_at)
                   end as reason
            from waiting as p
            cross join lateral (select octet_length("outrider".as_text(p.carried)) as bytes offset 0) as said
            where p_flush or p.newest <= began - settings.debounce or p.oldest <= began - settings.max_wait
               or p.newest > began + interval '5 minutes'        -- the clock was set back
        ),
        fit as materialized (
            select d.id, row_number() over (order by d.leader, d.id) as place,
                   d.id = max(d.id) over (partition by d.leader) as last
            from due as d where d.reason is null
        )
        select (select array_agg(f.id order by f.place) from fit as f),
               (select array_agg(f.place order by f.place) from fit as f where f.last),
               array_agg(d.id) filter (where d.reason is not null), array_agg(d.reason) filter (where d.reason is not null)
        into ids, ends, wrong, reasons
        from due as d;
        update "outrider".rollup_pending as p set set_aside_at = clock_timestamp(), error = w.reason
        from unnest(wrong, reasons) as w (id, reason) where p.id = w.id;
        get diagnostics aside = row_count;
        if cardinality(ids) > most then
            ends := array(select e from unnest(ends) with ordinality as n (e, place) where e <= most or place = 1 order by e);
            ids := ids[1 : ends[cardinality(ends)]];
        end if;
        if ids is not null then
            begin
                figures := "outrider".rollup_emit(rollup, ids, settings.threshold);
            exception when others then
                if "outrider".rollup_is_outage(sqlstate) then
                    raise;
                end if;
                sifted := "outrider".rollup_sift(rollup, ids, ends, settings.threshold);
                aside := aside + sifted.aside;
                figures := "outrider".rollup_emit(rollup, sifted.good, settings.threshold);
            end;
            run.groups_emitted := figures.groups_emitted;
            run.pieces_emitted := figures.pieces_emitted;
            run.conflicts_skipped := figures.conflicts_skipped;
            run.rows_marked := figures.rows_marked;
        end if;
        if ids is not null or aside > 0 then
            run.result := 'processed';
        end if;
    exception when others then
        run.result := 'error';
        run.error_count := run.error_count + 1;
        run.error_text := left(concat_ws('; ', run.error_text, sqlstate || ': ' || sqlerrm), 8000);
        run.groups_emitted := 0;
        run.pieces_emitted := 0;
        run.conflicts_skipped := 0;
        run.rows_marked := 0;
        aside := 0;
    end;

    if aside > 0 then
        select concat_ws('; ', run.error_text, format('%s rows were set aside, the newest: %s', aside, (
            select p.error from "outrider".rollup_pending as p
            where p.rollup = p_name and p.processed_at is null and p.set_aside_at is not null
            order by p.set_aside_at desc, p.id desc limit 1)))
        into run.error_text;
        run.error_count := run.error_count + 1;
    end if;
    select count(*) into run.pending_post from "outrider".rollup_pending as p
    where p.rollup = p_name and p.processed_at is null and p.set_aside_at is null;
    update "outrider".rollup as r set ticked_at = clock_timestamp() where r.name = p_name;
    delete from "outrider".rollup_pending as p where p.id in (
        select old.id from "outrider".rollup_pending as old
        where old.rollup = p_name and old.processed_at < now() - interval '7 days' limit 10000);
    delete from "outrider".rollup_log as l where l.id in (
        select old.id from "outrider".rollup_log as old
        where old.rollup = p_name and old.run_at < now() - interval '30 days' limit 1000);
    insert into "outrider".rollup_log (
        rollup, result, run_at, pending_pre, pending_post, groups_emitted, pieces_emitted, conflicts_skipped, rows_marked,
        set_aside, duration_ms, error_count, error_text)
    values (
        p_name, run.result, began, run.pending_pre, run.pending_post, run.groups_emitted, run.pieces_emitted,
        run.conflicts_skipped, run.rows_marked, aside, extract(epoch from clock_timestamp() - began) * 1000,
        run.error_count, run.error_text)
    returning * into run;
    return to_jsonb(run) - 'id';
end
$$;

CREATE FUNCTION outrider.rollup_work_noted(p_name text, p_flush boolean, p_by text, p_reason text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    told jsonb := "outrider".rollup_work(p_name, p_flush);
begin
    perform "outrider".note('rollup_run', p_by, p_reason, null, null, jsonb_strip_nulls(jsonb_build_object(
        'rollup', p_name, 'flushed', nullif(p_flush, false), 'result', told -> 'result', 'events',
        coalesce((told ->> 'groups_emitted')::bigint, 0) + coalesce((told ->> 'pieces_emitted')::bigint, 0))));
    return told;
end
$$;

CREATE FUNCTION outrider.room(p_subscription text, p_key text, p_workspace_id text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    select least(
        s.concurrency - (select count(*) from "outrider".job as d
                         where d.subscription = p_subscription and d.status = 'in_flight' and s.concurrency is not null),
        s.key_concurrency - (select count(*) from "outrider".job as d
                             where d.subscription = p_subscription and d.job_key = p_key
                               and coalesce(d.workspace_id, '') = coalesce(p_workspace_id, '') and d.status = 'in_flight'
                               and s.key_concurrency is not null),
        2147483647)
    from "outrider".subscription as s where s.name = p_subscription
$$;

CREATE FUNCTION outrider.route(p_subscription text, p_limit integer, p_scan integer, p_knows text[], p_queue text, p_priority integer, OUT outcome text, OUT routed bigint, OUT due_in double precision) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    place integer;
    due   bigint[];
    seqs  bigint[];
    kept  bigint[];
begin
    perform "outrider".sees_all();
    select max(t.outcome) filter (where t.seq is null), max(t.partition), max(t.due_in),
           coalesce(array_agg(t.seq order by t.seq) filter (where t.seq is not null), '{}')
    into outcome, place, due_in, seqs
    from "outrider".take(p_subscription, null, p_limit, p_scan, 0, p_knows) as t;
    routed := 0;
    if outcome not in ('more', 'done') then  -- the cursor is not locked
        return;
    end if;
    -- Here, and not with the lock_timeout of make_jobs, it waits for whoever has locked the whole table, like CREATE INDEX.
    lock table "outrider".job in row exclusive mode;
    due := array(
        select d.seq from "outrider".delivery as d
        where d.subscription = p_subscription and d.generation = 0 and d.partition = place and d.status = 'pending'
          and d.head and d.reached and d.run_at <= now()
        order by d.run_at, d.seq limit 100 for update skip locked);
    due := array(select e.seq from unnest(due) as e (seq) order by e.seq);
    select j.made, j.held into routed, kept from "outrider".make_jobs(p_subscription, due, p_queue, p_priority) as j;
    delete from "outrider".delivery as d
    where d.subscription = p_subscription and d.seq = any (due) and d.seq <> all (kept);
    -- Not together with these: one that is still held would divide them.
    select routed + j.made, array(select e.seq from unnest(kept || j.held) as e (seq) order by e.seq) into routed, kept
    from "outrider".make_jobs(p_subscription, seqs, p_queue, p_priority) as j;
    if kept <> '{}' then
        insert into "outrider".delivery as d (
            subscription, generation, partition, seq, event_id, event_type, status, head, reached, run_at, workspace_id)
        select p_subscription, 0, place, o.seq, o.id, o.event_type, 'pending', true, true, clock_timestamp() + interval '1 second',
               o.workspace_id
        from "outrider".outbox as o
        where o.seq = any (kept) and o.seq >= kept[1] and o.seq <= kept[cardinality(kept)]
        on conflict (subscription, seq) do update set run_at = excluded.run_at;
    end if;
    if outcome = 'done' and exists (
        select from "outrider".delivery as d
        where d.subscription = p_subscription and d.generation = 0 and d.partition = place and d.status = 'pending'
          and d.head and d.reached) then
        outcome := 'more';  -- the next take says when to try again
    end if;
end
$$;

CREATE FUNCTION outrider.run_now(p_job_id uuid, p_subscription text DEFAULT NULL::text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS TABLE(subscription text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET lock_timeout TO '10s'
    AS $$
#variable_conflict use_column
declare
    job  "outrider".job;
    seen boolean := false;
begin
    perform "outrider".sees_all(true);
    for job in
        select d.* from "outrider".job as d
        where d.id = any ("outrider".owed_of(p_job_id)) and d.subscription = coalesce(p_subscription, d.subscription)
        order by d.id for update
    loop
        seen := true;
        subscription := job.subscription;
        outcome := case job.status when 'pending' then 'due' when 'in_flight' then 'running' when 'failed' then 'dead'
                                   else 'cancelled' end;
        if job.status = 'pending' then
            perform "outrider".make_due(job);
            perform "outrider".note('run_now', p_by, p_reason, job.subscription, p_job_id,
                                   jsonb_build_object('run_at', job.run_at));
        end if;
        return next;
    end loop;
    if not seen then
        return query select g.* from "outrider".gone_job(p_job_id, p_subscription) as g;
    end if;
end
$$;

CREATE FUNCTION outrider.run_schedule(p_name text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    AS $$
declare
    asked "outrider".schedule;
    made  uuid;
begin
    perform "outrider".sees_all(true);
    update "outrider".schedule as s set enqueued_at = clock_timestamp() where s.name = p_name and s.job is not null
    returning s.* into asked;
    if not found then
        if exists (select from "outrider".schedule as s where s.name = p_name) then
            raise 'the job of % is not known here: run outrider migrate --app for its app', p_name using errcode = 'OR010';
        end if;
        raise 'there is no schedule %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    made := ("outrider".enqueue_one(
        asked.job_type, asked.job -> 'payload', null, null, (asked.job ->> 'priority')::integer, null, 'keep',
        asked.job ->> 'queue', asked.job ->> 'key', (asked.job ->> 'version')::integer, asked.job ->> 'source',
        asked.job ->> 'workspace_id', null, coalesce((
            select max(w.generation) from "outrider".worker as w
            where "outrider".has_workers(asked.job_type, w.generation, asked.job ->> 'queue')), 0))).job_id;
    perform "outrider".note('run_schedule', p_by, p_reason, asked.job_type, made, jsonb_build_object('schedule', p_name));
    return made;
end
$$;

CREATE TABLE outrider.sample (
    minute smallint NOT NULL,
    taken_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    seq bigint NOT NULL,
    waiting double precision NOT NULL,
    owed bigint NOT NULL,
    dead bigint NOT NULL,
    handled bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    CONSTRAINT sample_minute_check CHECK (((minute >= 0) AND (minute <= 59)))
)
WITH (fillfactor='50');

COMMENT ON COLUMN outrider.sample.seq IS 'the newest position of the log';

COMMENT ON COLUMN outrider.sample.waiting IS 'seconds that the oldest event or job has waited that a worker could take';

COMMENT ON COLUMN outrider.sample.owed IS 'events that wait for a retry, and jobs that are pending or running';

COMMENT ON COLUMN outrider.sample.handled IS 'events and jobs that the workers have handled since each of them started';

COMMENT ON COLUMN outrider.sample.failed IS 'attempts that have failed there';

CREATE FUNCTION outrider.sample_due() RETURNS boolean
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (NOT (EXISTS (SELECT FROM outrider.sample s WHERE ((s.taken_at >= (clock_timestamp() - '00:00:55'::interval)) AND (s.taken_at <= clock_timestamp())))));

CREATE FUNCTION outrider.scrubbed(p_history jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select case when jsonb_typeof(p_history) = 'array' then coalesce(
        (select jsonb_agg((
             select coalesce(jsonb_object_agg(field.key, field.value), '{}') from jsonb_each(entry.value) as field
             where field.key in ('cycle', 'attempt', 'at', 'code', 'worker', 'batch', 'by', 'replayed_at', 'forced', 'edited',
                                 'generation', 'discarded_at', 'cancelled_at', 'superseded_at')) order by entry.place)
         from jsonb_array_elements(p_history) with ordinality as entry (value, place)
         where jsonb_typeof(entry.value) = 'object'), '[]') end
$$;

CREATE FUNCTION outrider.sees_all(p_caller boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    asked name := case when p_caller then coalesce(nullif(current_setting('role'), 'none'), session_user) else current_user end;
begin
    if not p_caller and not (row_security_active('"outrider".outbox'::regclass) or row_security_active('"outrider".delivery'::regclass)
                             or row_security_active('"outrider".job'::regclass)) then
        return;
    end if;
    if not "outrider".sees_every_tenant(asked) then
        raise 'row-level security hides rows of % from role "%", and this needs all of them', '"outrider".outbox', asked
            using errcode = 'insufficient_privilege',
                  hint = format('The owner of the schema can let it see all rows: outrider tenants enable --role %s', quote_ident(asked));
    end if;
end
$$;

CREATE FUNCTION outrider.sees_every_tenant(p_role name) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select coalesce(bool_and(not c.relrowsecurity or r.rolsuper or r.rolbypassrls or (
        exists (select from pg_policy as p cross join unnest(p.polroles) as held (role)
                where p.polrelid = c.oid and p.polname = 'every_tenant'
                  and case held.role when 0 then true else pg_has_role(p_role, held.role, 'usage') end)
        and not exists (select from pg_policy as p where p.polrelid = c.oid and not p.polpermissive))), false)
    from pg_class as c cross join pg_roles as r
    where r.rolname = p_role and c.oid in ('"outrider".outbox'::regclass, '"outrider".delivery'::regclass, '"outrider".job'::regclass)
$$;

CREATE FUNCTION outrider.set_setting(p_name text, p_value text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    found_one "outrider".setting;
    rollups   boolean := starts_with(p_name, 'rollup.');
begin
    select s.* into found_one from "outrider".setting as s where s.name = p_name for update;
    if not found then
        raise 'there is no setting %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    if p_name = 'paused' then
        raise 'use `outrider subscription pause --all` and `resume --all` to pause and resume everything'
            using errcode = 'OR010';
    end if;
    if p_value is null and not rollups then
        raise 'the setting % needs a value', p_name using errcode = 'OR010';
    end if;
    if (case when p_value ~ '^[[:space:]]*[+-]?[0-9]{1,18}[[:space:]]*$' then p_value::bigint not between found_one.least and found_one.greatest
             else p_value is not null end) then
        raise 'the setting % must be a whole number from % to %, not %', p_name, found_one.least, found_one.greatest,
            quote_nullable(left(p_value, 100)) using errcode = 'OR010';
    end if;
    update "outrider".setting as s
    set value = case when rollups then s.value else p_value::bigint end,
        entered = case when rollups then trim(p_value) else s.entered end, updated_at = now()
    where s.name = p_name;
    perform "outrider".note('set_setting', p_by, p_reason, null, null, jsonb_build_object(
        'setting', p_name, 'value', p_value::bigint,
        'before', case when rollups then to_jsonb(found_one.entered) else to_jsonb(found_one.value) end));
end
$_$;

CREATE FUNCTION outrider.setting_value(p_name text) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select s.value from "outrider".setting as s where s.name = p_name
$$;

CREATE FUNCTION outrider.settle(p_batch bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if current_setting('outrider.batch', true) is distinct from p_batch::text then
        raise 'a handler ended the transaction of its batch' using errcode = 'OR005';
    end if;
    perform set_config('outrider.settled', p_batch::text, true);
end
$$;

CREATE FUNCTION outrider.settle_done(p_names text[], p_done bigint[], p_tokens bigint[], p_results jsonb[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_indexscan TO 'off'
    SET enable_nestloop TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    landed  bigint[];
    newer   bigint[];
    older   bigint[];
    names   text[];
    tenants text[];
    keys    text[];
begin
    with named as materialized (
        select n.id, n.token, n.result from unnest(p_done, p_tokens, p_results) as n (id, token, result)
    ),
    gone as (
        delete from "outrider".job as d using named
        -- By their ids once, then a hash join, even if the statistics say that the table is empty: an old snapshot keeps dead rows,
        -- and a nested loop would read them all for each job. Only who is in flight has a token; to say so would offer another index.
        where d.id = any (p_done) and d.id = named.id and d.lease_token = named.token
        returning d.id, d.subscription, d.event_id, d.seq, d.generation, d.workspace_id, d.unique_key, d.job_key,
                  d.failure_history, named.result
    ),
    receipts as (
        insert into "outrider".event_handled (
            handler_name, idempotency_key, event_id, seq, generation, content_class, result, failure_history, workspace_id,
            job_key)
        select gone.subscription,
               coalesce(case when gone.seq is not null then "outrider".in_workspace(gone.workspace_id, gone.unique_key) end,
                        gone.event_id::text),
               gone.event_id, coalesce(gone.seq, 0), gone.generation, 'internal', gone.result, gone.failure_history,
               case when said.anything then gone.workspace_id end,
               case when said.anything and gone.seq is null then gone.job_key end
        from gone cross join lateral (select num_nonnulls(gone.result, gone.failure_history) > 0) as said (anything)
        where gone.seq is not null or said.anything or gone.subscription = any (array(
            select s.name from "outrider".subscription as s where s.name = any (p_names) and s.keep is not null))
        on conflict do nothing
    )
    select array_agg(gone.id), array_agg(gone.id) filter (where u.own), array_agg(gone.subscription) filter (where u.own),
           array_agg(coalesce(gone.workspace_id, '')) filter (where u.own), array_agg(gone.unique_key) filter (where u.own)
    into landed, newer, names, tenants, keys
    from gone cross join lateral (select gone.unique_key is not null and gone.seq is null) as u (own);
    if newer is not null then
        older := array(
            select older.id from unnest(newer, names, tenants, keys) as n (id, name, tenant, key)
            cross join lateral (
                select j.id from "outrider".job as j
                where j.subscription = n.name and coalesce(j.workspace_id, '') = n.tenant and j.unique_key = n.key
                  and j.status = 'in_flight' and j.seq is null and j.id < n.id limit 1000) as older);
        if older <> '{}' then
            update "outrider".job as d set superseded_at = clock_timestamp()
            where d.id = any (older) and d.status = 'in_flight' and not d.closed;
        end if;
    end if;
    return coalesce(landed, '{}');
end
$$;

CREATE FUNCTION outrider.settle_jobs(p_names text[], p_done bigint[], p_tokens bigint[], p_results jsonb[], p_others jsonb, p_worker text) RETURNS TABLE(delivery bigint, outcome text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '20ms'
    AS $$
#variable_conflict use_column
declare
    limited text[];
    asked   record;
    job     "outrider".job;
    landed  bigint[] := '{}';
    held    bigint[] := '{}';
begin
    perform "outrider".sees_all();
    begin
        landed := "outrider".settle_done(p_names, p_done, p_tokens, p_results);
    exception when lock_not_available then
        for place in 1..cardinality(p_done) loop
            begin
                landed := landed || "outrider".settle_done(
                    p_names, p_done[place:place], p_tokens[place:place], p_results[place:place]);
            exception when lock_not_available then
                held := held || p_done[place];
                perform set_config('lock_timeout', '1ms', true);
            end;
        end loop;
    end;
    if cardinality(landed) = cardinality(p_done) then
        outcome := 'done';
        return next;
    else
        return query select l.id, 'done' from unnest(landed) as l (id) union all select h.id, 'held' from unnest(held) as h (id);
    end if;

    for asked in
        select o.* from jsonb_to_recordset(p_others) as o (
            delivery bigint, token bigint, verdict text, delay double precision, code text, message text, counted boolean,
            traceback text)
        order by o.delivery
    loop
        begin
            select d.* into job from "outrider".job as d
            where d.id = asked.delivery and d.lease_token = asked.token and d.status = 'in_flight'
            for no key update;
            continue when not found;
            if asked.verdict in ('later', 'dead') then
                job.last_traceback := left(asked.traceback, 4096);
            end if;
            delivery := asked.delivery;
            outcome := "outrider".release(
                job, asked.verdict, coalesce(asked.delay, 0), asked.code, asked.message, coalesce(asked.counted, true),
                p_worker);
        exception when lock_not_available then
            delivery := asked.delivery;
            outcome := 'held';
            perform set_config('lock_timeout', '1ms', true);
        end;
        return next;
    end loop;
    -- There is room again. Not only where somebody is seen to wait for it: a claim that counts these jobs may be under way.
    limited := array(
        select s.name from "outrider".subscription as s
        where s.name = any (p_names) and (s.concurrency is not null or s.key_concurrency is not null));
    if limited <> '{}' then
        perform "outrider".wake_jobs(limited);
    end if;
end
$$;

CREATE FUNCTION outrider.signed(p_by text) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select left(coalesce(nullif(p_by, ''), session_user::text), 200)
$$;

CREATE FUNCTION outrider.stored_at_most(p_value jsonb) RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (CASE WHEN (pg_column_compression(p_value) IS NULL) THEN 1 ELSE 256 END * (pg_column_size(p_value))::bigint);

CREATE FUNCTION outrider.stored_bytes(p_value jsonb) RETURNS integer
    LANGUAGE sql STABLE
    RETURN CASE WHEN (pg_column_compression(p_value) IS NULL) THEN pg_column_size(p_value) ELSE pg_column_size((p_value #> '{}'::text[])) END;

CREATE FUNCTION outrider.take(p_subscription text, p_partition integer DEFAULT NULL::integer, p_limit integer DEFAULT 500, p_scan integer DEFAULT 10000, p_generation bigint DEFAULT 0, p_knows text[] DEFAULT NULL::text[], p_armed bigint DEFAULT NULL::bigint, p_excused integer DEFAULT 0, p_worker text DEFAULT NULL::text, p_careful boolean DEFAULT false, p_alone boolean DEFAULT false) RETURNS SETOF outrider.taken
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    lock       record;
    counted    record;
    reading    record;
    cur        "outrider".cursor;
    sub        "outrider".subscription;
    head       "outrider".taken;
    first_seq  bigint;
    seqs       bigint[];
    returned   bigint;
    settles    boolean;
    suspicious boolean := false;
    parked     boolean;
    diverting  boolean := false;
begin
    perform "outrider".sees_all();
    if (p_limit >= 1 and p_scan >= p_limit) is not true then
        raise 'take needs 1 <= limit <= scan, got limit % and scan %', p_limit, p_scan using errcode = 'OR001';
    end if;
    p_excused := least(greatest(p_excused, 0), 1000);  -- as many as count_take counts at once

    lock := "outrider".lock_cursor(p_subscription, p_partition, p_generation, p_armed);
    cur := lock.locked;
    head.outcome := lock.outcome;
    if head.outcome = 'taken' then
        -- After the lock: doubling the partitions locks the cursors first.
        select s.* into strict sub from "outrider".subscription as s where s.name = p_subscription;
        if sub.ordering = 'total' then  -- the log is read up to the first parked event and no further
            first_seq := (select min(d.seq) from "outrider".delivery as d
                          where d.subscription = p_subscription and d.generation = p_generation and d.status = 'pending'
                            and d.ordering_key = '');
        end if;
        head.outcome := coalesce("outrider".obstacle(cur, sub, p_knows, p_armed, first_seq), head.outcome);
    end if;
    if head.outcome <> 'taken' then
        head.due_in := "outrider".next_retry(p_subscription, p_generation);
        return next head;
        return;
    end if;

    settles := sub.kind = 'handler';
    head.partition := cur.partition;
    head.cursor := cur.id;
    if settles then
        counted := "outrider".count_deaths(cur, p_excused);
        cur.takes := counted.batch;
        cur.excused := counted.excused;
        head.batch := set_config('outrider.batch', cur.takes::text, true);
        if counted.deaths > 5 then
            update "outrider".cursor as c set takes = cur.takes, excused = cur.excused where c.id = cur.id;
            perform "outrider".count_take(cur.id, 1, p_excused);
            head.outcome := 'more';
            return next head;
            return;
        end if;
        suspicious := counted.deaths >= 3;
        p_limit := case when cur.open_until is null then p_limit else 1 end;
        -- If an event was parked or buried before the log was read up to it, or is parked in this partition: look at each event.
        select suspicious or exists (
                   select from "outrider".delivery as d
                   where d.subscription = p_subscription and d.seq > least(cur.seq, cur.floor, cur.owed_after)),
               exists (select from "outrider".delivery as d
                       where d.subscription = p_subscription and d.generation = p_generation
                         and d.partition = cur.partition and d.status = 'pending' and d.head and d.reached)
        into diverting, parked;
        if parked then
            diverting := true;
            return query select * from "outrider".take_parked(
                p_subscription, cur, p_limit, p_armed, suspicious, cur.excused, head, p_worker, p_alone);
            if found then
                perform "outrider".count_take(cur.id, 1, p_excused);
                return;
            end if;
        end if;
    end if;

    reading := "outrider".read(cur, sub, least(lock.drawn, case when settles then first_seq end), lock.home, p_limit, p_scan);
    head.outcome := reading.outcome;
    seqs := reading.seqs;
    if settles and cur.open_until is not null and seqs <> '{}' then
        head.outcome := 'probe';
    elsif settles and head.outcome = 'done' and (diverting or sub.partitions > 1) then
        head.outcome := 'more';
    end if;
    if diverting and seqs <> '{}' then
        seqs := "outrider".divert(cur, sub.ordering, seqs, suspicious);
    end if;

    return query
    with batch as materialized (
        select o.* from "outrider".outbox as o
        where o.seq = any (seqs) and o.seq >= seqs[1] and o.seq <= seqs[cardinality(seqs)]
    ),
    own_receipts as (
        insert into "outrider".event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
        select p_subscription, batch.id::text, batch.id, batch.seq, batch.generation, batch.content_class
        from batch
        where settles and not p_careful and batch.idempotency_key is null
        returning seq
    ),
    given_receipts as (
        insert into "outrider".event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
        select p_subscription, winner.key, winner.id, winner.seq, winner.generation, winner.content_class
        from (select "outrider".receipt_key(batch.workspace_id, batch.event_type, batch.idempotency_key, batch.id)
                         collate "C" as key, batch.*
              from batch
              where settles and (p_careful or batch.idempotency_key is not null)) as winner
        -- The insert would wait for an open replay that deletes the receipt (p_force). While it is there, the event is a duplicate.
        where not exists (select from "outrider".event_handled as h
                          where h.handler_name = p_subscription and h.idempotency_key = winner.key)
        order by winner.key, winner.seq
        on conflict do nothing
        returning seq
    ),
    receipts as materialized (select * from own_receipts union all select * from given_receipts)
    select * from jsonb_populate_record(head, jsonb_build_object('duplicates', case when settles then
        cardinality(seqs) - (select count(*) from receipts) end))
    union all
    (select null, null, null, null, null, null, null,
            1, b.seq, b.id, b.event_type, b.event_version, b.occurred_at, b.source, b.target, b.content_class, b.channel,
            b.generation, b.workspace_id, b.aggregate_kind, b.aggregate_id, b.entity_version, "outrider".as_text(b.payload),
            coalesce(b.idempotency_key, b.id::text), nullif("outrider".as_text(b.trace_context), ''), b.origin
     from batch as b
     -- The OR keeps this a hashed look-up. As a join it would be planned for a few rows and become quadratic.
     where not settles or b.seq in (select receipts.seq from receipts)
     order by b.seq);
    get diagnostics returned = row_count;

    if settles then
        if returned > 1 and (cur.failures > 0 or cur.open_until is not null) then
            update "outrider".cursor as c set failures = 0, open_until = null where c.id = cur.id;
        end if;
        perform "outrider".count_take(cur.id, 1, p_excused);
    end if;
end
$$;

CREATE FUNCTION outrider.take_parked(p_subscription text, p_cursor outrider.cursor, p_limit integer, p_armed bigint, p_suspicious boolean, p_excused bigint, p_head outrider.taken, p_worker text, p_alone boolean) RETURNS SETOF outrider.taken
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $_$
#variable_conflict use_column
declare
    head   "outrider".taken := p_head;
    first  "outrider".delivery;
    chosen bigint[];
    lost   bigint;
    lines  text[];
    fits   integer;
begin
    perform "outrider".sees_all();
    head.outcome := 'more';
    head.duplicates := 0;

    if p_suspicious then
        update "outrider".delivery as d set suspect = true
        from (select h.id, h.ordering_key from "outrider".delivery as h
              where h.subscription = p_subscription and h.generation = p_cursor.generation
                and h.partition = p_cursor.partition and h.status = 'pending' and h.head and h.reached
                and h.run_at <= now()) as due
        where d.subscription = p_subscription and d.generation = p_cursor.generation and d.status = 'pending'
          and (d.id = due.id or d.ordering_key = due.ordering_key);
        return;
    end if;

    if p_armed is not null then
        select d.* into first from "outrider".delivery as d
        where d.id = p_armed and d.subscription = p_subscription and d.status = 'pending' and d.head
          and d.generation = p_cursor.generation and d.partition = p_cursor.partition;
    else
        select d.* into first from "outrider".delivery as d
        where d.subscription = p_subscription and d.generation = p_cursor.generation and d.partition = p_cursor.partition
          and d.status = 'pending' and d.head and d.reached and d.run_at <= now()
        order by d.run_at limit 1;
    end if;
    if first.id is null then
        return;
    end if;

    if first.suspect and first.id is distinct from p_armed then
        if not p_alone then
            head.outcome := 'suspect';
        elsif first.crashes >= 3 then
            perform "outrider".bury(first.id, 'worker_crash',
                'the worker died each time it ran this event: ' || first.crashes || ' times alone', p_worker);
        else
            update "outrider".delivery as d set crashes = d.crashes + 1, run_at = now() + interval '30 seconds'
            where d.id = first.id;
            head.outcome := 'armed';
            head.delivery := first.id;
        end if;
        update "outrider".cursor as c set takes = head.batch, excused = p_excused where c.id = p_cursor.id;
        return next head;
        return;
    end if;

    if first.id = p_armed then
        chosen := array[first.id];
    else
        chosen := array(
            select one.id
            from (select h.id, h.ordering_key, row_number() over (order by h.run_at, h.id) as place
                  from "outrider".delivery as h
                  where h.subscription = p_subscription and h.generation = p_cursor.generation and h.partition = p_cursor.partition
                    and h.status = 'pending' and h.head and h.reached and not h.suspect and h.run_at <= now()
                  order by h.run_at, h.id limit p_limit) as h
            cross join lateral (
                select h.id, 0::bigint as seq
                union all
                (select f.id, f.seq
                 from (select f.id, f.seq,
                              bool_or(f.suspect or not f.reached or f.run_at > now()) over (order by f.seq) as stopped
                       from (select f.* from "outrider".delivery as f
                             where f.subscription = p_subscription and f.generation = p_cursor.generation
                               and f.ordering_key = h.ordering_key and f.status = 'pending' and not f.head
                             order by f.seq limit p_limit) as f) as f
                 where not f.stopped)
            ) as one
            order by h.place, one.seq limit p_limit);
        fits := "outrider".fitting($payloads$
            select coalesce(d.payload, o.payload)
            from unnest($1) with ordinality as c (id, place)
            join "outrider".delivery as d on d.id = c.id
            left join lateral (select o.payload from "outrider".outbox as o where o.seq = d.seq limit 1) as o on true
            order by c.place$payloads$, chosen);
        if fits is not null then
            chosen := chosen[1 : fits];
        end if;
    end if;

    lines := array(select distinct d.ordering_key from "outrider".delivery as d
                   where d.id = any (chosen) and d.ordering_key is not null);
    for lost in
        select d.id from "outrider".delivery as d
        where d.id = any (chosen) and not exists (select from "outrider".outbox as o where o.seq = d.seq)
    loop
        perform "outrider".bury(lost, 'event_missing', 'its event is not in the log: somebody has removed it', p_worker);
        chosen := array_remove(chosen, lost);
    end loop;
    if p_cursor.open_until is not null then
        head.outcome := 'probe';
    end if;
    update "outrider".cursor as c set takes = head.batch, excused = p_excused, failures = 0, open_until = null
    where c.id = p_cursor.id;

    return query
    with gone as (
        delete from "outrider".delivery as d where d.id = any (chosen)
        returning d.id, d.seq, d.attempts, d.ordering_key, d.payload, nullif(d.failure_history, '[]') as failure_history
    ),
    batch as materialized (
        select array_position(chosen, gone.id) as place, gone.attempts + 1 as attempt, gone.payload as edited,
               gone.failure_history, o.*
        from gone cross join lateral (select o.* from "outrider".outbox as o where o.seq = gone.seq limit 1) as o
    ),
    receipts as (
        insert into "outrider".event_handled (
            handler_name, idempotency_key, event_id, seq, generation, content_class, failure_history, workspace_id)
        select p_subscription, winner.key, winner.id, winner.seq, winner.generation, winner.content_class,
               winner.failure_history, case when winner.failure_history is not null then winner.workspace_id end
        from (select "outrider".receipt_key(batch.workspace_id, batch.event_type, batch.idempotency_key, batch.id)
                         collate "C" as key, batch.*
              from batch) as winner
        where not exists (select from "outrider".event_handled as h  -- as in take
                          where h.handler_name = p_subscription and h.idempotency_key = winner.key)
        order by winner.key, winner.place
        on conflict do nothing
        returning seq
    )
    select * from jsonb_populate_record(head, jsonb_build_object(
        'duplicates', (select count(*) from batch) - (select count(*) from receipts)))
    union all
    (select null, null, null, null, null, null, null,
            b.attempt, b.seq, b.id, b.event_type, b.event_version, b.occurred_at, b.source, b.target, b.content_class,
            b.channel, b.generation, b.workspace_id, b.aggregate_kind, b.aggregate_id, b.entity_version,
            "outrider".as_text(coalesce(b.edited, b.payload)), coalesce(b.idempotency_key, b.id::text),
            nullif("outrider".as_text(b.trace_context), ''), b.origin
     from batch as b
     where b.seq in (select receipts.seq from receipts)
     order by b.place);

    perform "outrider".promote(p_subscription, p_cursor.generation, lines);
end
$_$;

CREATE FUNCTION outrider.take_turns(p_lanes outrider.lane[], p_wanted integer) RETURNS tid[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    seed bigint := (random() * 4294967296)::bigint;
begin
    if (select count(*) from (
            select from unnest(p_lanes) as l
            cross join lateral (select from "outrider".job as j where "outrider".in_lane(j, l) limit p_wanted + 1) as j
            limit p_wanted + 1) as ready) <= p_wanted then
        return '{}';
    end if;
    return array(
        with tenant as materialized (
            select t.lane, t.tenant from "outrider".tenants_due(p_lanes, least(64, 2 * p_wanted + 6)) as t
        ),
        -- Of each tenant about twice its share, because some have fewer; pick adds what is missing.
        most as materialized (
            select least(p_wanted, 1 + ceil(2.0 * p_wanted / greatest(1, count(distinct tenant.tenant)))::integer) as jobs
            from tenant
        ),
        running as materialized (
            select r.tenant, count(*) as jobs
            from (select hashtextextended(j.workspace_id, 0) as tenant from "outrider".job as j
                  where j.subscription = any (array(select l.subscription from unnest(p_lanes) as l))
                    and j.status = 'in_flight' limit 1000) as r
            group by r.tenant
        ),
        next as materialized (
            select tenant.lane, tenant.tenant, j.claim_at, j.id from tenant cross join most
            cross join lateral (
                select "outrider".claim_at(j), j.id from "outrider".job as j
                where "outrider".in_turn(j, tenant.lane) and hashtextextended(j.workspace_id, 0) = tenant.tenant
                order by "outrider".claim_at(j), j.id limit most.jobs) as j
            union all
            select l, null, j.claim_at, j.id from unnest(p_lanes) as l cross join most
            cross join lateral (
                select "outrider".claim_at(j), j.id from "outrider".job as j
                where "outrider".in_lane(j, l) order by "outrider".claim_at(j), j.id limit most.jobs) as j
            where l.tenanted = 0
        ),
        share as materialized (
            select turn.lane, turn.tenant, count(*) as jobs
            from (select next.lane, next.tenant from next
                  left join running on running.tenant is not distinct from next.tenant
                  order by coalesce(running.jobs, 0)
                               + row_number() over (partition by next.tenant order by next.claim_at, next.id),
                           hashint8extended(coalesce(next.tenant, 0), seed), next.claim_at, next.id
                  limit p_wanted) as turn
            group by 1, 2
        )
        select picked.place from share
        cross join lateral (
            select j.ctid as place from "outrider".job as j
            where "outrider".in_lane(j, share.lane)
            order by "outrider".claim_at(j), j.id limit share.jobs for update skip locked) as picked
        where share.tenant is null
        union all
        select picked.place from share
        cross join lateral (
            select j.ctid as place from "outrider".job as j
            where "outrider".in_turn(j, share.lane) and hashtextextended(j.workspace_id, 0) = share.tenant
            order by "outrider".claim_at(j), j.id limit share.jobs for update skip locked) as picked
        where share.tenant is not null);
end
$$;

CREATE FUNCTION outrider.tenant_page(p_workspace_id text, p_kind text, p_subject text, p_jobs boolean, p_from text, p_after bigint, p_scan integer) RETURNS TABLE(place bigint, found uuid, erased boolean, line text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $_$
#variable_conflict use_column
declare
    source text;
    ends   bigint;
begin
    perform "outrider".sees_all(true);
    perform "outrider".refuse_nobody(p_workspace_id, p_kind, p_subject);
    if p_from = 'jobs' then
        select coalesce(
                   step.ids["outrider".fitting($payloads$
                       select j.payload from unnest($1) with ordinality as q (id, n)
                       cross join lateral (select j.payload from "outrider".job as j where j.id = q.id limit 1) as j
                       order by q.n$payloads$, step.ids)],
                   step.last)
        into ends
        from (select array_agg(j.id order by j.id) filter (
                         where j.seq is null and (p_workspace_id is null or j.workspace_id = p_workspace_id)) as ids,
                     case when count(*) = p_scan then max(j.id) end as last
              from (select j.id, j.seq, j.workspace_id from "outrider".job as j
                    where j.id > p_after order by j.id limit p_scan) as j) as step;
        place := ends;
        return next;
        return query
        select step.id, step.event_id, step.erased, case when "outrider".as_text(step.payload) = ''
               then (jsonb_build_object('kind', 'job') || to_jsonb(step) - 'erased' || '{"payload": null, "unreadable": true}')::text
               else (jsonb_build_object('kind', 'job') || to_jsonb(step) - 'erased')::text end
        from (select j.id, j.event_id, j.subscription, j.subscription as event_type, j.event_version, j.source, j.workspace_id,
                     j.generation, j.status, j.queue, j.priority, j.job_key, j.unique_key, j.run_at, j.attempts, j.last_error_code,
                     j.last_error, j.created_at, j.progress, j.payload, coalesce(j.last_error_code = '(erased)', false) as erased
              from "outrider".job as j
              where j.id > p_after and j.id <= coalesce(ends, 9223372036854775807)
                and j.seq is null and (p_workspace_id is null or j.workspace_id = p_workspace_id)
                and (p_subject is null or p_jobs and j.job_key = p_subject)
              order by j.id) as step;
        return;
    end if;
    source := case p_from when 'events' then 'outbox' else (
        select s.name from "outrider".segment as s where s.name = p_from and s.detached_at is not null) end;
    if source is null then
        raise 'there is no detached segment %', quote_nullable(p_from) using errcode = 'OR006';
    end if;
    return query execute format($query$
        with read as materialized (
            select o.* from "outrider".%1$I as o where o.seq > $1 order by o.seq limit $2
        ),
        step as materialized (
            select read.*
            from read
            where ($3 is null or read.workspace_id = $3)
              and ($4 is null or read.aggregate_kind = $4 and read.aggregate_id = $5)
        ),
        ends as materialized (
            select coalesce((select (array_agg(step.seq order by step.seq))["outrider".fitting($payloads$
                                 select o.payload from unnest($1) with ordinality as q (seq, n)
                                 cross join lateral (select o.payload from "outrider".%1$I as o where o.seq = q.seq limit 1) as o
                                 order by q.n$payloads$,
                                 array_agg(step.seq order by step.seq))] from step),
                            case when count(*) = $2 then max(read.seq) end) as seq from read
        )
        select ends.seq, null::uuid, null::boolean, null::text from ends
        union all
        (select step.seq, step.id, (line.said ->> 'erased_at') is not null,
                case when "outrider".as_text(step.payload) = '' or "outrider".as_text(step.trace_context) = ''
                     then line.said || '{"payload": null, "trace_context": null, "unreadable": true}' else line.said end::text
         from step cross join lateral (
             select jsonb_build_object('kind', 'event') || to_jsonb(step) - 'tx' - 'channel' as said) as line
         where step.seq <= coalesce((select ends.seq from ends), step.seq)
         order by step.seq)$query$, source)
    using p_after, p_scan, p_workspace_id, p_kind, p_subject;
end
$_$;

CREATE FUNCTION outrider.tenants_due(p_lanes outrider.lane[], p_most integer) RETURNS TABLE(lane outrider.lane, tenant bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    start bigint := ((random() - 0.5) * 18446744073709549568)::bigint;
begin
    return query
    with recursive step as (
        select l as lane, start as tenant, false as wrapped, 0 as found from unnest(p_lanes) as l where l.tenanted = 1
        union all
        select step.lane, next.tenant, next.wrapped, step.found + 1
        from step
        cross join lateral (
            (select hashtextextended(j.workspace_id, 0) as tenant, step.wrapped as wrapped
             from "outrider".job as j
             where "outrider".in_turn(j, step.lane) and hashtextextended(j.workspace_id, 0) > step.tenant
               and (not step.wrapped or hashtextextended(j.workspace_id, 0) <= start)
             order by hashtextextended(j.workspace_id, 0) limit 1)
            union all
            (select hashtextextended(j.workspace_id, 0), true
             from "outrider".job as j
             where not step.wrapped and "outrider".in_turn(j, step.lane) and hashtextextended(j.workspace_id, 0) <= start
             order by hashtextextended(j.workspace_id, 0) limit 1)
            limit 1) as next
        where step.found < p_most
    )
    select step.lane, step.tenant from step where step.found > 0;
end
$$;

CREATE FUNCTION outrider.tenants_plan(p_enable boolean, p_roles text[] DEFAULT '{}'::text[]) RETURNS TABLE(command text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    own   constant text := 'workspace_id = nullif(current_setting(''app.workspace_id'', true), '''')';
    part  record;
    heads text;
begin
    for part in
        select c.oid::regclass as name, c.relowner::regrole as owner,
               case c.relname when 'outbox' then own when 'job' then own || ' and seq is null' else 'false' end as may_write
        from pg_class as c where c.oid in ('"outrider".outbox'::regclass, '"outrider".delivery'::regclass, '"outrider".job'::regclass) order by c.oid
    loop
        command := format('drop policy if exists own_workspace on %s', part.name); return next;
        command := format('drop policy if exists every_tenant on %s', part.name); return next;
        if p_enable then
            heads := concat_ws(', ', part.owner, (
                select string_agg(r.name::regrole::text, ', ' order by r.place)
                from unnest(p_roles) with ordinality as r (name, place) where r.name::regrole <> part.owner));
            command := format('create policy own_workspace on %s using (%s) with check (%s)', part.name, own, part.may_write);
            return next;
            command := format('create policy every_tenant on %s to %s using (true) with check (true)', part.name, heads);
            return next;
            command := format('alter table %s enable row level security, force row level security', part.name);
        else
            command := format('alter table %s disable row level security, no force row level security', part.name);
        end if;
        return next;
    end loop;
    for part in
        select c.oid::regclass as name from "outrider".segment as s
        join pg_class as c on c.oid = to_regclass(format('"outrider".%I', s.name)) where c.relrowsecurity <> p_enable
        order by c.oid
    loop
        command := format('alter table %s %s row level security', part.name, case when p_enable then 'enable' else 'disable' end);
        return next;
    end loop;
    command := case when p_enable then 'alter view "outrider".event_status set (security_invoker = true)'
                                  else 'alter view "outrider".event_status reset (security_invoker)' end;
    return next;
end
$$;

CREATE FUNCTION outrider.unread(p_name text, p_scan integer DEFAULT 10000, OUT events bigint, OUT more boolean) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
declare
    sub "outrider".subscription;
begin
    select s.* into sub from "outrider".subscription as s where s.name = p_name;
    with place as (
        select c.*,
               -- Restored from elsewhere, where all its transactions are over: the rule is that of read.
               case when c.cluster <> (select "outrider".log_home())
                         or c.horizon >= pg_snapshot_xmax(pg_current_snapshot())
                    then '9223372036854775807:9223372036854775807:'::pg_snapshot else pg_current_snapshot() end as finished
        from "outrider".cursor as c where c.subscription = p_name
    ),
    fresh as materialized (
        select o.seq, o.aggregate_id, o.generation, "outrider".concerns(o, sub) as concerns from "outrider".outbox as o
        where o.seq > (select min(place.seq) from place) order by o.seq limit p_scan
    ),
    -- Both owing and inflight: while owing is read in pages, transactions of inflight may finish.
    late_tx as materialized (
        select place.partition, place.generation, place.seq as until, owing.tx, place.owed_after as after
        from place cross join unnest(place.owing) as owing (tx)
        union all
        select place.partition, place.generation, place.seq, found.tx, place.floor
        from place cross join "outrider".late_transactions(
            place.inflight, place.horizon, place.finished, place.floor, place.seq) as found (tx)
    ),
    late as (
        select o.*, late_tx.partition, late_tx.generation as read_by
        from late_tx cross join lateral (
            select o.seq, o.aggregate_id, o.generation, "outrider".concerns(o, sub) as concerns from "outrider".outbox as o
            where o.tx = late_tx.tx and o.seq > late_tx.after and o.seq <= late_tx.until
            order by o.seq limit p_scan) as o
    ),
    unread as (
        select fresh.*, place.partition, place.generation as read_by from fresh join place on fresh.seq > place.seq
        union
        select late.* from late
    )
    select count(*), (select count(*) = p_scan from fresh)
    into events, more
    from unread
    where unread.concerns
      and unread.partition = coalesce(hashtextextended(unread.aggregate_id, 0), unread.seq) & (sub.partitions - 1)
      -- As in wanted: a generation has cursors of its own, or those of generation 0 read it.
      and unread.read_by = coalesce((select max(place.generation) from place where place.generation = unread.generation), 0)
      and not exists (select from "outrider".withdrawal as w where w.seq = unread.seq);
end
$$;

CREATE FUNCTION outrider.upkeep_begin(p_every interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '200ms'
    AS $$
begin
    insert into "outrider".upkeep as u (task) values ('run')
    on conflict (task) do update set ran_at = clock_timestamp()
    where u.ran_at not between clock_timestamp() - p_every and clock_timestamp();  -- in the future if the clock was set back
    return found;
exception when lock_not_available then
    return false;
end
$$;

CREATE FUNCTION outrider.upkeep_dead_letters(p_dry boolean DEFAULT false, p_limit integer DEFAULT 1000) RETURNS SETOF outrider.upkept
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '200ms'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    before timestamptz := clock_timestamp()
                          - make_interval(days => "outrider".setting_value('retention.dead_letter_days')::integer);
    events bigint[];
    jobs   bigint[];
    gone   bigint[];
begin
    if (p_limit between 1 and 10000) is not true then
        raise 'a step of upkeep is 1 to 10000, not %', p_limit using errcode = 'OR009';
    end if;
    if not "outrider".upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::"outrider".upkept;
        return;
    end if;
    events := array(select d.id from "outrider".delivery as d
                    where d.status in ('failed', 'discarded') and coalesce(d.buried_at, d.created_at) < before and d.reached
                    order by coalesce(d.buried_at, d.created_at) limit p_limit for update skip locked);
    jobs := array(select j.id from "outrider".job as j
                  where j.status in ('failed', 'discarded') and coalesce(j.buried_at, j.created_at) < before
                  order by coalesce(j.buried_at, j.created_at) limit p_limit - cardinality(events) for update skip locked);
    gone := events || jobs;
    if gone = '{}' then
        return;
    end if;
    return query
    select 'expired', 'dead letters of ' || d.subscription, count(*), format('buried before %s', date_trunc('second', before))
    from "outrider".owed as d where d.id = any (gone) group by d.subscription order by d.subscription;
    if p_dry then
        return;
    end if;
    insert into "outrider".audit (by, action, subscription, details)
    select 'upkeep', 'expire_dead_letters', d.subscription, jsonb_build_object(
        'dead_letters', count(*), 'buried_before', before, 'codes', jsonb_agg(distinct d.last_error_code))
    from "outrider".owed as d where d.id = any (gone) group by d.subscription;
    delete from "outrider".delivery as d where d.id = any (events);
    delete from "outrider".job as j where j.id = any (jobs);
    if cardinality(gone) = p_limit then
        return next ('more', 'dead letters', 0, null)::"outrider".upkept;
    end if;
end
$$;

CREATE FUNCTION outrider.upkeep_lock() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'upkeep needs a READ COMMITTED transaction, this one is %', current_setting('transaction_isolation')
            using errcode = 'OR009';
    end if;
    perform "outrider".sees_all(true);  -- it would take rows that it does not see for handled
    perform set_config('lock_timeout', coalesce("outrider".setting_value('upkeep.lock_timeout_ms'), 200)::text, true);
    -- A caller that hangs must not keep the log locked; from Postgres 17 on, nor one that runs for long.
    perform set_config('idle_in_transaction_session_timeout', '1000', true);
    if current_setting('server_version_num')::integer >= 170000 then
        perform set_config('transaction_timeout', '20000', true);
    end if;
    -- A row, because anybody could hold an advisory lock.
    insert into "outrider".upkeep (task) values ('lock') on conflict do nothing;
    perform from "outrider".upkeep as u where u.task = 'lock' for update skip locked;
    return found;
end
$$;

CREATE FUNCTION outrider.upkeep_log(p_dry boolean DEFAULT false) RETURNS SETOF outrider.upkept
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '200ms'
    AS $_$
declare
    days    integer := "outrider".setting_value('retention.log_days');
    grace   integer := "outrider".setting_value('retention.log_grace_days');
    this    "outrider".segment;
    reasons text;
    told    "outrider".upkept;
    dropped bigint;
    jobs    bigint;
begin
    if not "outrider".upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::"outrider".upkept;
        return;
    end if;
    perform "outrider".note_segments();
    if not p_dry then
        perform "outrider".canary_end(old.name, null)
        from (select s.name from "outrider".subscription as s join "outrider".cursor as c on c.subscription = s.name
              where s.name ~ '^outrider[.]canary_[0-9a-f]{8}$' and s.created_at < now() - interval '10 minutes'
              for update of s, c skip locked) as old;
    end if;

    for this in select s.* from "outrider".segment as s
                where s.detached_at < clock_timestamp() - make_interval(days => grace) order by s.first_seq loop
        told := ('dropped', this.name, this.last_seq, format('%s to %s', this.first_seq, this.last_seq));
        if not p_dry then
            begin
                execute format($copies$
                    update "outrider".audit as a
                    set details = a.details - 'payload' - 'before' - 'owed' - 'receipt' - 'error' || '{"dropped": true}'
                    where a.details ?| array['payload', 'before', 'owed', 'receipt', 'error']
                      and exists (select from "outrider".%I as o where o.id = a.event_id)$copies$, this.name);
                execute format('drop table "outrider".%I', this.name);
                delete from "outrider".segment as s where s.name = this.name;
                insert into "outrider".audit (by, action, details)
                values ('upkeep', 'drop_segment', to_jsonb(this));
            exception
                when lock_not_available or deadlock_detected then
                    told := ('busy', this.name, 0, 'somebody reads it');
                when dependent_objects_still_exist then
                    told := ('kept', this.name, 0, sqlerrm);
                    update "outrider".segment as s set kept = sqlerrm where s.name = this.name;
            end;
        end if;
        return next told;
    end loop;

    for this in select s.* from "outrider".segment as s
                where s.detached_at is null and s.closed_at < clock_timestamp() - make_interval(days => days)
                  and coalesce(s.wanted_until, '-infinity') < clock_timestamp()
                order by s.first_seq loop
        reasons := (select string_agg(why, '; ') from (select why from "outrider".debts(this) as why limit 20) as first);
        if reasons is not null then
            update "outrider".segment as s set kept = reasons where s.name = this.name and s.kept is distinct from reasons;
            return next ('kept', this.name, 0, reasons)::"outrider".upkept;
            continue;
        end if;
        told := ('detached', this.name, this.last_seq, format('%s to %s', this.first_seq, this.last_seq));
        if not p_dry then
            begin
                lock table only "outrider".outbox in access exclusive mode;
                execute format('lock table only "outrider".%I in access exclusive mode', this.name);
                reasons := (select string_agg(why, '; ') from (select why from "outrider".debts(this) as why limit 20) as first);
                if reasons is null then
                    execute format('alter table "outrider".outbox detach partition "outrider".%I', this.name);
                    execute format('comment on table "outrider".%I is ''a detached segment of the log''', this.name);
                    -- Nobody waits for what was discarded, and without its event it cannot be replayed.
                    delete from "outrider".delivery as d using "outrider".subscription as s
                    where d.subscription = s.name and d.seq between this.first_seq and this.last_seq and d.status = 'discarded';
                    get diagnostics dropped = row_count;
                    delete from "outrider".job as j using "outrider".subscription as s
                    where j.subscription = s.name and j.seq between this.first_seq and this.last_seq and j.status = 'discarded';
                    get diagnostics jobs = row_count;
                    insert into "outrider".audit (by, action, details) values (
                        'upkeep', 'detach_segment', to_jsonb(this) || jsonb_build_object('discarded', dropped + jobs));
                else
                    told := ('kept', this.name, 0, reasons);
                end if;
                update "outrider".segment as s
                set kept = reasons, detached_at = case when reasons is null then clock_timestamp() end, wanted_until = null
                where s.name = this.name;
            exception when lock_not_available or deadlock_detected then
                told := ('busy', this.name, 0, "outrider".log_holders());
            end;
            -- The log is locked until the transaction ends: return at once.
            return next told;
            return;
        end if;
        return next told;
    end loop;
    update "outrider".segment as s set kept = null
    where s.kept is not null and s.detached_at is null
      and s.closed_at >= clock_timestamp() - make_interval(days => days);
end
$_$;

CREATE FUNCTION outrider.upkeep_reap(p_dry boolean DEFAULT false, p_limit integer DEFAULT 500) RETURNS SETOF outrider.upkept
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '200ms'
    AS $$
declare
    before timestamptz := clock_timestamp() - interval '1 minute';
    names  text[];
    jobs   bigint;
begin
    if (p_limit between 1 and 10000) is not true then
        raise 'a step of upkeep is 1 to 10000, not %', p_limit using errcode = 'OR009';
    end if;
    if not "outrider".upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::"outrider".upkept;
        return;
    end if;
    select array_agg(distinct j.subscription order by j.subscription), count(*) into names, jobs
    from "outrider".job as j where j.status = 'in_flight' and j.lease_expires_at < before;
    if names is null then
        return;
    end if;
    if not p_dry then
        jobs := "outrider".reap(names, null, p_limit);
    end if;
    if jobs > 0 then
        return next ('reaped', array_to_string(names, ', '), jobs, null)::"outrider".upkept;
    end if;
end
$$;

CREATE FUNCTION outrider.upkeep_receipts(p_dry boolean DEFAULT false, p_pages integer DEFAULT 100) RETURNS SETOF outrider.upkept
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '200ms'
    SET jit TO 'off'
    AS $$
declare
    kept   interval := make_interval(days => ("outrider".setting_value('retention.receipt_days')
                                              + "outrider".setting_value('retention.receipt_grace_days'))::integer);
    before timestamptz := clock_timestamp() - kept;
    grace  interval := make_interval(days => "outrider".setting_value('retention.receipt_grace_days')::integer);
    below  bigint;
    until  bigint;
    behind text[];
    place  "outrider".upkeep;
    pages  bigint := pg_relation_size('"outrider".event_handled') / current_setting('block_size')::bigint;
    gone   bigint;
    left_at timestamptz;
begin
    if (p_pages between 1 and 10000) is not true then
        raise 'a step of upkeep is 1 to 10000, not %', p_pages using errcode = 'OR009';
    end if;
    if not "outrider".upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::"outrider".upkept;
        return;
    end if;
    insert into "outrider".upkeep (task) values ('receipts') on conflict do nothing;
    select u.* into place from "outrider".upkeep as u where u.task = 'receipts' for update;
    below := coalesce((select min(s.first_seq) from "outrider".segment as s), 0);
    place.page := greatest(place.page, 0);
    if place.page = 0 then
        if greatest(place.next_at, place.oldest + kept) > clock_timestamp() then
            return;
        end if;
        place.oldest := null;
    end if;
    -- Positions that may have been handed out before the grace began.
    until := coalesce((select min(s.first_seq) - 1 from "outrider".segment as s where s.begun_at > clock_timestamp() - grace),
                      pg_sequence_last_value('"outrider".outbox_seq'::regclass), 0);
    behind := array(
        select s.name from "outrider".subscription as s
        where exists (select from "outrider".cursor as c where c.subscription = s.name and "outrider".owes(c, 1, until))
           or exists (select from "outrider".owed as d
                      where d.subscription = s.name and d.seq <= until and d.status in ('pending', 'in_flight'))
        order by s.name);
    if p_dry then
        gone := (select count(*) from "outrider".event_handled as h
                 where h.ctid >= format('(%s,0)', place.page)::tid and h.ctid < format('(%s,0)', place.page + p_pages)::tid
                   and h.handled_at < before and (h.seq = 0 or h.seq < below and h.handler_name <> all (behind))
                   and not exists (select from "outrider".subscription as s
                                   where s.name = h.handler_name and h.handled_at + s.keep > clock_timestamp()));
    else
        delete from "outrider".event_handled as h
        where h.ctid >= format('(%s,0)', place.page)::tid and h.ctid < format('(%s,0)', place.page + p_pages)::tid
          and h.handled_at < before and (h.seq = 0 or h.seq < below and h.handler_name <> all (behind))
          and not exists (select from "outrider".subscription as s
                          where s.name = h.handler_name and h.handled_at + s.keep > clock_timestamp());
        get diagnostics gone = row_count;
        -- A receipt that is kept longer counts as younger.
        left_at := (select min(h.handled_at + greatest(s.keep - kept, interval '0')) from "outrider".event_handled as h
                   left join "outrider".subscription as s on s.name = h.handler_name
                   where h.ctid >= format('(%s,0)', place.page)::tid
                     and h.ctid < format('(%s,0)', place.page + p_pages)::tid);
        if place.page + p_pages < pages then
            update "outrider".upkeep as u
            set page = place.page + p_pages, oldest = least(place.oldest, left_at), next_at = null,
                ran_at = clock_timestamp()
            where u.task = 'receipts';
            return next ('more', 'receipts', gone, format('page %s of %s', place.page + p_pages, pages))::"outrider".upkept;
            return;
        end if;
        update "outrider".upkeep as u
        set page = 0, oldest = least(place.oldest, left_at), ran_at = clock_timestamp(),
            next_at = clock_timestamp() + interval '1 hour'
        where u.task = 'receipts';
    end if;
    if exists (select from "outrider".event_handled as h
               where h.ctid >= format('(%s,0)', place.page)::tid and h.ctid < format('(%s,0)', place.page + p_pages)::tid
                 and h.handled_at < before and h.seq < below and h.handler_name = any (behind)) then
        return next ('kept', 'receipts', 0, format('of %s, which has not handled what is older than %s days',
                     array_to_string(behind[:5], ', ') || case when cardinality(behind) > 5 then ' and others' else '' end,
                     extract(day from grace)))::"outrider".upkept;
    end if;
    if gone > 0 then
        return next ('expired', 'receipts', gone, null)::"outrider".upkept;
    end if;
end
$$;

CREATE FUNCTION outrider.upkeep_segments(p_dry boolean DEFAULT false) RETURNS SETOF outrider.upkept
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '200ms'
    SET default_tablespace TO ''
    SET default_table_access_method TO 'heap'
    AS $$
declare
    most     constant bigint := 64 * 1024 * 1024;
    size     bigint := "outrider".setting_value('segments.size');
    wanted   bigint := "outrider".setting_value('segments.ahead');
    drawn    bigint;
    ahead    bigint;
    tail     "outrider".segment;
    this     "outrider".segment;
    starts   bigint;
    ends     bigint;
    days     interval := make_interval(days => "outrider".setting_value('segments.days')::integer);
    fills    bigint;  -- positions that the log uses in that time, at the pace of the current segment
    held     bigint;
    early    boolean;
    made     text[];
    told     "outrider".upkept;
begin
    if not "outrider".upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::"outrider".upkept;
        return;
    end if;
    perform "outrider".note_segments();
    drawn := coalesce(pg_sequence_last_value('"outrider".outbox_seq'::regclass), 0);
    select * into tail from "outrider".segment as s where s.detached_at is null and s.last_seq is null;
    ahead := (select count(*) from "outrider".segment as s
              where s.detached_at is null and s.last_seq is not null and s.first_seq > drawn);

    if ahead * 2 < wanted or tail.name is null then
        if tail.name is not null and drawn >= tail.first_seq
           and pg_relation_size(format('"outrider".%I', tail.name)) > most then
            told := ('kept', tail.name, 0, 'the last segment is written to and too large to be ended without holding up publishers');
        elsif p_dry then
            told := ('make', tail.name, wanted - ahead, null);
        else
            begin
                if tail.name is null then
                    starts := coalesce((select max(s.last_seq) + 1 from "outrider".segment as s), 0);
                elsif drawn < tail.first_seq then
                    starts := tail.first_seq;
                    made := array(select "outrider".make_segment(starts + n * size) from generate_series(0, wanted - ahead - 1) as n);
                end if;
                lock table only "outrider".outbox in access exclusive mode;
                if made is not null and coalesce(pg_sequence_last_value('"outrider".outbox_seq'::regclass), 0) >= starts then
                    raise lock_not_available using message = 'the log has just reached its last segment';
                end if;
                if tail.name is not null then
                    execute format('alter table "outrider".outbox detach partition "outrider".%I', tail.name);
                end if;
                if made is null and tail.name is not null then
                    starts := coalesce(pg_sequence_last_value('"outrider".outbox_seq'::regclass), 0) + 1;
                    execute format('alter table "outrider".%I rename to %I', tail.name, 'outbox_from_' || tail.first_seq);
                    update "outrider".segment as s set name = 'outbox_from_' || tail.first_seq, closed_at = clock_timestamp()
                    where s.name = tail.name;
                    perform "outrider".attach_part('outbox_from_' || tail.first_seq, tail.first_seq, starts - 1);
                end if;
                if made is null then
                    -- Only one, because the log is locked; the next call creates the others before it locks.
                    made := array["outrider".make_segment(starts)];
                    execute format('alter table "outrider".%I rename to outbox_tail', "outrider".make_segment(starts + size));
                    tail.name := 'outbox_tail';
                end if;
                perform "outrider".attach_part(made[n + 1], starts + n * size, starts + (n + 1) * size - 1)
                from generate_series(0, cardinality(made) - 1) as n;
                perform "outrider".attach_part(tail.name, starts + cardinality(made) * size, null);
                told := ('made', tail.name, cardinality(made), format('%s to %s', starts, starts + cardinality(made) * size - 1));
            exception when lock_not_available or deadlock_detected then
                told := ('busy', tail.name, 0, "outrider".log_holders());
            end;
        end if;
        return next told;
    end if;

    select * into this from "outrider".segment as s
    where s.detached_at is null and greatest(s.first_seq, 1) <= drawn and s.last_seq > drawn;
    if not found then
        return;
    end if;
    fills := greatest(10000, (drawn - this.first_seq) * extract(epoch from days)
                             / greatest(1, extract(epoch from clock_timestamp() - this.begun_at)));
    held := pg_relation_size(format('"outrider".%I', this.name));
    early := this.begun_at >= clock_timestamp() - days;
    if held > most or this.begun_at is null or early and (held <= most * 3 / 4 or this.first_seq + fills >= this.last_seq) then
        return;
    end if;
    if p_dry then
        return next ('cut', this.name, drawn, format('begun %s', this.begun_at))::"outrider".upkept;
        return;
    end if;
    begin
        lock table only "outrider".outbox in access exclusive mode;
        drawn := pg_sequence_last_value('"outrider".outbox_seq'::regclass);
        if drawn >= this.last_seq then
            return;
        end if;
        execute format('alter table "outrider".outbox detach partition "outrider".%I', this.name);
        perform "outrider".attach_part(this.name, this.first_seq, drawn);
        ends := case when early then least(drawn + fills, this.last_seq) else this.last_seq end;
        perform "outrider".attach_part("outrider".make_segment(drawn + 1), drawn + 1, ends);
        if ends < this.last_seq then
            perform "outrider".attach_part("outrider".make_segment(ends + 1), ends + 1, this.last_seq);
        end if;
        update "outrider".segment as s set closed_at = clock_timestamp() where s.name = this.name;
        told := ('cut', this.name, drawn, format('begun %s', this.begun_at));
    exception when lock_not_available or deadlock_detected then
        told := ('busy', this.name, 0, "outrider".log_holders());
    end;
    return next told;
end
$$;

CREATE FUNCTION outrider.upkeep_traces(p_dry boolean DEFAULT false, p_limit integer DEFAULT 5000) RETURNS SETOF outrider.upkept
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET lock_timeout TO '200ms'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    before  timestamptz := clock_timestamp() - make_interval(days => "outrider".setting_value('retention.audit_days')::integer);
    below   bigint := (select min(s.first_seq) from "outrider".segment as s);
    audits  bigint[];
    seqs    bigint[];
begin
    if (p_limit between 1 and 10000) is not true then
        raise 'a step of upkeep is 1 to 10000, not %', p_limit using errcode = 'OR009';
    end if;
    if not "outrider".upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::"outrider".upkept;
        return;
    end if;
    audits := array(select oldest.id from (select a.id, a.at from "outrider".audit as a order by a.id limit p_limit) as oldest
                    where oldest.at < before);
    seqs := array(select w.seq from "outrider".withdrawal as w where w.seq < below order by w.seq limit p_limit);
    if not p_dry then
        delete from "outrider".audit as a where a.id = any (audits);
        delete from "outrider".withdrawal as w where w.seq = any (seqs);
    end if;
    if audits <> '{}' then
        return next ('expired', 'audit', cardinality(audits), format('before %s', date_trunc('second', before)))::"outrider".upkept;
    end if;
    if seqs <> '{}' then
        return next ('expired', 'withdrawals', cardinality(seqs), format('below %s', below))::"outrider".upkept;
    end if;
    if greatest(cardinality(audits), cardinality(seqs)) = p_limit and not p_dry then
        return next ('more', 'traces', 0, null)::"outrider".upkept;
    end if;
end
$$;

CREATE FUNCTION outrider.waiting_behind(p_event_id uuid, p_subscription text DEFAULT NULL::text, p_after bigint DEFAULT 0, p_limit integer DEFAULT 50) RETURNS TABLE(subscription text, event_id uuid, seq bigint, event_type text, attempts integer, since timestamp with time zone)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
begin
    perform "outrider".sees_all();
    return query
    select f.subscription, f.event_id, f.seq, f.event_type, f.attempts, f.created_at
    from "outrider".delivery as d
    cross join lateral (
        select f.* from "outrider".delivery as f
        where f.subscription = d.subscription and f.generation = d.generation and f.ordering_key = d.ordering_key
          and f.status = 'pending' and f.seq > greatest(d.seq, p_after)
        order by f.seq limit p_limit) as f
    where d.event_id = p_event_id and d.status = 'pending' and (p_subscription is null or d.subscription = p_subscription)
    order by f.subscription, f.seq;
end
$$;

CREATE FUNCTION outrider.waiting_events(p_subscription text DEFAULT NULL::text, p_after text DEFAULT NULL::text, p_limit integer DEFAULT 50, p_most integer DEFAULT 1000) RETURNS TABLE(subscription text, event_id uuid, seq bigint, event_type text, key text, attempts integer, run_at timestamp with time zone, code text, error text, behind bigint, ordering text, generation bigint, place text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    AS $_$
#variable_conflict use_column
declare
    after constant text[] := regexp_match(p_after, '^(.+)/(\d{1,18})/(\d{1,9})/([\d:.T-]{26}Z)/(\d{1,18})$');
begin
    perform "outrider".sees_all();
    if p_after is not null and after is null then
        raise '% is not the place of a waiting event', quote_nullable(left(p_after, 100)) using errcode = 'OR010';
    end if;
    return query
    select d.subscription, d.event_id, d.seq, d.event_type, d.ordering_key, d.attempts, d.run_at, d.last_error_code, d.last_error,
           (select count(*) from (
                select from "outrider".delivery as f
                where f.subscription = d.subscription and f.generation = d.generation and f.ordering_key = d.ordering_key
                  and f.status = 'pending' and f.seq > d.seq
                limit p_most) as behind),
           s.ordering, d.generation,
           format('%s/%s/%s/%s/%s', d.subscription, d.generation, d.partition,
                  to_char(d.run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.USZ'), d.id)
    from "outrider".subscription as s
    cross join lateral (select coalesce(s.name = after[1], false) as first) as page
    cross join lateral (
        select d.* from "outrider".delivery as d
        where d.subscription = s.name and d.status = 'pending' and d.head and d.reached
          and (d.generation, d.partition, d.run_at, d.id) > (
              case when page.first then after[2]::bigint else -1 end, case when page.first then after[3]::integer else -1 end,
              case when page.first then after[4]::timestamptz else '-infinity' end,
              case when page.first then after[5]::bigint else -1 end)
        order by d.generation, d.partition, d.run_at, d.id limit p_limit) as d
    where (p_subscription is null or s.name = p_subscription) and (after is null or s.name >= after[1])
    order by s.name, d.generation, d.partition, d.run_at, d.id limit p_limit;
end
$_$;

CREATE FUNCTION outrider.wake(p_names text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform "outrider".notify(
        "outrider".generation_channel(each.generation), each.kind)
    from (select c.generation, wanted.event_type as kind
          from "outrider".subscription as s join "outrider".cursor as c on c.subscription = s.name
          cross join unnest(coalesce(s.event_types, array[''])) as wanted (event_type)
          where s.name = any (p_names)
          group by 1, 2) as each;
    perform "outrider".wake_jobs(p_names);
end
$$;

CREATE FUNCTION outrider.wake_jobs(p_names text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform "outrider".notify(
        "outrider".generation_channel(each.generation), each.name)
    from (select distinct w.generation, served.name
          from "outrider".worker as w cross join unnest(w.subscriptions) as served (name)
          where served.name = any (p_names)) as each;
end
$$;

CREATE FUNCTION outrider.wanted(p_event outrider.outbox, p_subscription outrider.subscription, p_cursor outrider.cursor, p_others bigint[], p_withdrawn boolean) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN (outrider.concerns(p_event, p_subscription) AND (((p_subscription).partitions = 1) OR ((COALESCE(hashtextextended((p_event).aggregate_id, (0)::bigint), (p_event).seq) & (((p_subscription).partitions - 1))::bigint) = (p_cursor).partition)) AND CASE (p_cursor).generation WHEN 0 THEN ((p_event).generation <> ALL (p_others)) ELSE ((p_event).generation = (p_cursor).generation) END AND (NOT (p_withdrawn AND outrider.is_withdrawn((p_event).seq))));

CREATE FUNCTION outrider.withdraw(p_event_id uuid, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) RETURNS TABLE(subscription text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'on'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
    seqs      bigint[] := array(select o.seq from "outrider".outbox as o where o.id = p_event_id);
    concerned text[];
    held      text[] := '{}';
    outcomes  jsonb;
    gone      "outrider".delivery;
    job       "outrider".job;
    owed      jsonb := '[]';
    who       text := "outrider".signed(p_by);
    why       text := left(p_reason, 2000);
begin
    perform "outrider".sees_all(true);
    if seqs = '{}' then
        outcome := 'not_found';
        return next;
        return;
    end if;
    loop
        concerned := array(select distinct e.subscription from "outrider".event_status as e where e.event_id = p_event_id);
        exit when concerned <@ held;
        held := held || concerned;
        perform from "outrider".subscription as s where s.name = any (concerned) order by s.name for no key update;
        perform from "outrider".cursor as c where c.subscription = any (concerned)
        order by c.subscription, c.generation, c.partition for update;
    end loop;
    outcomes := coalesce((
        select jsonb_object_agg(each.subscription, each.outcome)
        from (select e.subscription, max(case e.status when 'delivered' then 'delivered' else 'withdrawn' end) as outcome
              from "outrider".event_status as e
              where e.event_id = p_event_id and e.subscription = any (concerned)
              group by e.subscription) as each), '{}');

    insert into "outrider".withdrawal (seq, event_id, withdrawn_by, reason)
    select each.seq, p_event_id, who, why from unnest(seqs) as each (seq)
    on conflict do nothing;
    for gone in
        delete from "outrider".delivery as d where d.subscription = any (concerned) and d.seq = any (seqs) returning d.*
    loop
        owed := owed || to_jsonb(gone);
        perform "outrider".promote(gone.subscription, gone.generation, array[gone.ordering_key]);
        perform "outrider".notify("outrider".generation_channel(gone.generation), gone.event_type);
    end loop;
    for job in
        delete from "outrider".job as j where j.subscription = any (concerned) and j.seq = any (seqs) returning j.*
    loop
        owed := owed || to_jsonb(job);
        if job.job_key is not null then
            perform "outrider".wake_jobs(array[job.subscription]);
        end if;
        perform "outrider".notify("outrider".generation_channel(job.generation), job.subscription);
    end loop;
    perform "outrider".note('withdraw', p_by, p_reason, null, p_event_id, jsonb_strip_nulls(jsonb_build_object(
        'outcomes', outcomes, 'owed', nullif(owed, '[]'))));
    return query select told.key, told.value from jsonb_each_text(outcomes) as told order by told.key;
end
$$;

CREATE TABLE outrider.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    role text DEFAULT SESSION_USER NOT NULL,
    by text NOT NULL,
    action text NOT NULL,
    subscription text,
    event_id uuid,
    details jsonb DEFAULT '{}'::jsonb NOT NULL
);

ALTER TABLE outrider.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outrider.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE outrider.cursor ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outrider.cursor_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE outrider.event_handled (
    handler_name text NOT NULL COLLATE pg_catalog."C",
    idempotency_key text NOT NULL COLLATE pg_catalog."C",
    event_id uuid NOT NULL,
    seq bigint NOT NULL,
    handled_at timestamp with time zone DEFAULT now() NOT NULL,
    generation bigint NOT NULL,
    content_class text NOT NULL,
    workspace_id text,
    job_key text,
    result jsonb,
    failure_history jsonb
)
WITH (autovacuum_vacuum_insert_scale_factor='0.02', autovacuum_vacuum_scale_factor='0.02', autovacuum_freeze_min_age='0');

COMMENT ON COLUMN outrider.event_handled.handler_name IS 'the subscription';

COMMENT ON COLUMN outrider.event_handled.idempotency_key IS 'event type:key as the producer gave it, after length:workspace: where it has one; or the event''s id';

COMMENT ON COLUMN outrider.event_handled.workspace_id IS 'whose result and failure_history these are; null where there is neither';

COMMENT ON COLUMN outrider.event_handled.job_key IS 'the same, of a job that was enqueued: its key';

COMMENT ON COLUMN outrider.event_handled.failure_history IS 'of an event that was handled only after it had failed';

CREATE TABLE outrider.withdrawal (
    seq bigint NOT NULL,
    event_id uuid NOT NULL,
    withdrawn_at timestamp with time zone DEFAULT now() NOT NULL,
    withdrawn_by text NOT NULL,
    reason text,
    outcomes jsonb
);

COMMENT ON COLUMN outrider.withdrawal.outcomes IS 'of an erased event: subscriptions without receipts that had read it';

CREATE VIEW outrider.event_status AS
 SELECT o.id AS event_id,
    o.seq,
    o.event_type,
    o.occurred_at,
    o.workspace_id,
    o.generation,
    s.name AS subscription,
        CASE
            WHEN (h.event_id = o.id) THEN 'delivered'::text
            WHEN (w.seq IS NOT NULL) THEN COALESCE((w.outcomes ->> s.name), told.outcome, 'withdrawn'::text)
            WHEN (d.status = ANY (ARRAY['failed'::text, 'discarded'::text])) THEN d.status
            WHEN (h.handler_name IS NOT NULL) THEN 'delivered'::text
            WHEN (d.id IS NOT NULL) THEN d.status
            WHEN place.passed THEN 'delivered'::text
            ELSE 'pending'::text
        END AS status,
    d.attempts,
    d.run_at,
    h.handled_at,
    NULLIF(h.event_id, o.id) AS handled_as,
    d.last_error_code,
    d.last_error,
    COALESCE(d.failure_history,
        CASE
            WHEN (h.event_id = o.id) THEN h.failure_history
            ELSE NULL::jsonb
        END) AS failure_history,
    o.erased_at
   FROM (((((((outrider.outbox o
     CROSS JOIN outrider.subscription s)
     CROSS JOIN LATERAL ( SELECT
                CASE s.kind
                    WHEN 'relay'::text THEN ((NOT starts_with(o.event_type, 'outrider.canary_'::text)) AND (s.forwards OR (o.origin IS NULL)) AND (((s.workspace_id IS NULL) OR (o.workspace_id = s.workspace_id)) IS TRUE))
                    ELSE ((o.target IS NULL) OR (o.target = s.context))
                END AS addressed,
            ((s.event_types IS NULL) OR (o.event_type = ANY (s.event_types))) AS wanted) fits)
     CROSS JOIN LATERAL ( SELECT ((o.seq <= c.seq) AND (NOT COALESCE(((o.tx = ANY (c.owing)) AND (o.seq > c.owed_after)), false)) AND (NOT ((o.seq > c.floor) AND (o.tx < c.horizon) AND (NOT pg_visible_in_snapshot(o.tx, c.inflight))))) AS passed
           FROM outrider.cursor c
          WHERE ((c.subscription = s.name) AND (c.generation = ANY (ARRAY[(0)::bigint, o.generation])) AND (c.partition = (COALESCE(hashtextextended(o.aggregate_id, (0)::bigint), o.seq) & ((s.partitions - 1))::bigint)))
          ORDER BY c.generation DESC
         LIMIT 1) place)
     LEFT JOIN LATERAL ( SELECT h_1.handler_name,
            h_1.event_id,
            h_1.handled_at,
            h_1.failure_history
           FROM outrider.event_handled h_1
          WHERE ((h_1.handler_name = s.name) AND (h_1.idempotency_key = COALESCE((((COALESCE((((length(o.workspace_id) || ':'::text) || o.workspace_id) || ':'::text), ''::text) || o.event_type) || ':'::text) || o.idempotency_key), (o.id)::text)) AND ((h_1.event_id = o.id) OR fits.addressed))
         LIMIT 1) h ON (true))
     LEFT JOIN LATERAL ( SELECT d_1.id,
            d_1.status,
            d_1.attempts,
            d_1.run_at,
            d_1.last_error_code,
            d_1.last_error,
            d_1.failure_history
           FROM outrider.delivery d_1
          WHERE ((d_1.subscription = s.name) AND (d_1.seq = o.seq))
        UNION ALL
         SELECT j.id,
            j.status,
            j.attempts,
            j.run_at,
            j.last_error_code,
            j.last_error,
            j.failure_history
           FROM outrider.job j
          WHERE ((j.subscription = s.name) AND (j.seq = o.seq))
 LIMIT 1) d ON (true))
     LEFT JOIN LATERAL ( SELECT w_1.seq,
            w_1.outcomes
           FROM outrider.withdrawal w_1
          WHERE (w_1.seq = o.seq)
         LIMIT 1) w ON (true))
     LEFT JOIN LATERAL ( SELECT ((a.details -> 'outcomes'::text) ->> s.name) AS outcome
           FROM outrider.audit a
          WHERE ((w.seq IS NOT NULL) AND (a.event_id = o.id) AND (a.action = 'withdraw'::text) AND (((a.details -> 'outcomes'::text) ->> s.name) IS NOT NULL))
          ORDER BY a.id
         LIMIT 1) told ON (true))
  WHERE ((h.handler_name IS NOT NULL) OR (d.id IS NOT NULL) OR (told.outcome IS NOT NULL) OR (w.outcomes ? s.name) OR (fits.addressed AND fits.wanted AND ((NOT place.passed) OR ((s.kind = ANY (ARRAY['reader'::text, 'relay'::text])) AND (o.occurred_at >= s.created_at)))));

CREATE TABLE outrider.job_limit (
    subscription text NOT NULL
);

CREATE SEQUENCE outrider.lease_token
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE outrider.migration (
    version integer NOT NULL,
    name text NOT NULL,
    breaking boolean NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL,
    applied_by text NOT NULL
);

CREATE TABLE outrider.outbox_s0 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s1 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s10 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s11 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s12 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s13 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s14 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s15 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s2 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s3 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s4 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s5 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s6 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s7 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s8 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.outbox_s9 (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

ALTER TABLE outrider.outbox ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outrider.outbox_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE outrider.outbox_tail (
    tx xid8 DEFAULT pg_current_xact_id() CONSTRAINT outbox_tx_not_null NOT NULL,
    seq bigint CONSTRAINT outbox_seq_not_null NOT NULL,
    id uuid DEFAULT outrider.uuid7() CONSTRAINT outbox_id_not_null NOT NULL,
    event_type text CONSTRAINT outbox_event_type_not_null NOT NULL,
    event_version integer DEFAULT 1 CONSTRAINT outbox_event_version_not_null NOT NULL,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT outbox_occurred_at_not_null NOT NULL,
    source text CONSTRAINT outbox_source_not_null NOT NULL,
    target text,
    content_class text DEFAULT 'internal'::text CONSTRAINT outbox_content_class_not_null NOT NULL,
    channel text DEFAULT 'outbox_default'::text CONSTRAINT outbox_channel_not_null NOT NULL,
    generation bigint DEFAULT 0 CONSTRAINT outbox_generation_not_null NOT NULL,
    workspace_id text,
    aggregate_kind text,
    aggregate_id text,
    entity_version bigint,
    payload jsonb CONSTRAINT outbox_payload_not_null NOT NULL,
    idempotency_key text,
    trace_context jsonb,
    caused_by uuid,
    origin text,
    erased_at timestamp with time zone
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_insert_threshold='10000', autovacuum_freeze_min_age='0');

CREATE TABLE outrider.rollup_log (
    id bigint NOT NULL,
    rollup text NOT NULL,
    result text NOT NULL,
    run_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    pending_pre bigint NOT NULL,
    pending_post bigint NOT NULL,
    groups_emitted bigint DEFAULT 0 NOT NULL,
    pieces_emitted bigint DEFAULT 0 NOT NULL,
    conflicts_skipped bigint DEFAULT 0 NOT NULL,
    rows_marked bigint DEFAULT 0 NOT NULL,
    set_aside bigint DEFAULT 0 NOT NULL,
    duration_ms double precision NOT NULL,
    error_count integer DEFAULT 0 NOT NULL,
    error_text text,
    CONSTRAINT rollup_log_result_check CHECK ((result = ANY (ARRAY['idle'::text, 'processed'::text, 'error'::text])))
);

COMMENT ON COLUMN outrider.rollup_log.groups_emitted IS 'rollup events';

COMMENT ON COLUMN outrider.rollup_log.pieces_emitted IS 'single events';

COMMENT ON COLUMN outrider.rollup_log.conflicts_skipped IS 'rows that the user''s notification table had already';

COMMENT ON COLUMN outrider.rollup_log.rows_marked IS 'staged rows that became part of an event';

ALTER TABLE outrider.rollup_log ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outrider.rollup_log_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE outrider.rollup_pending (
    id bigint NOT NULL,
    rollup text NOT NULL,
    workspace_id text,
    group_key text,
    carried jsonb NOT NULL,
    staged_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    processed_at timestamp with time zone,
    event_id uuid,
    set_aside_at timestamp with time zone,
    error text
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON COLUMN outrider.rollup_pending.group_key IS 'null = it stays single';

COMMENT ON COLUMN outrider.rollup_pending.event_id IS 'the event that it became, or a part of';

COMMENT ON COLUMN outrider.rollup_pending.set_aside_at IS 'it could not be made an event of: see error; rollup_retry lets it be tried again';

ALTER TABLE outrider.rollup_pending ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outrider.rollup_pending_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE outrider.schedule (
    name text NOT NULL,
    context text,
    job_type text NOT NULL,
    cron text NOT NULL,
    time_zone text NOT NULL,
    missed text,
    job jsonb,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    fired_at timestamp with time zone NOT NULL,
    ahead timestamp with time zone,
    enqueued_at timestamp with time zone,
    paused_at timestamp with time zone,
    CONSTRAINT schedule_context_check CHECK (((octet_length(context) >= 1) AND (octet_length(context) <= 63))),
    CONSTRAINT schedule_missed_check CHECK ((missed = ANY (ARRAY['once'::text, 'skip'::text, 'all'::text]))),
    CONSTRAINT schedule_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200)))
);

COMMENT ON COLUMN outrider.schedule.context IS 'who fires it; null: whoever registers it first from now on';

COMMENT ON COLUMN outrider.schedule.missed IS 'as declared; null = registered by code that did not write it';

COMMENT ON COLUMN outrider.schedule.job IS 'the job as declared, for run_schedule: payload, version, source, queue, priority, key, workspace_id';

COMMENT ON COLUMN outrider.schedule.updated_at IS 'since when it has these times';

COMMENT ON COLUMN outrider.schedule.fired_at IS 'the newest time that was fired, or passed over; a new schedule begins now';

COMMENT ON COLUMN outrider.schedule.ahead IS 'the last time that was fired while the clock was ahead: it has its job';

COMMENT ON COLUMN outrider.schedule.enqueued_at IS 'when it last enqueued a job';

COMMENT ON COLUMN outrider.schedule.paused_at IS 'since when it does not fire';

CREATE TABLE outrider.setting (
    name text NOT NULL,
    value bigint NOT NULL,
    entered text,
    "least" bigint NOT NULL,
    "greatest" bigint NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT setting_value_check CHECK (((value >= "least") AND (value <= "greatest")))
);

COMMENT ON TABLE outrider.setting IS 'limits that operators may change; content_class.NAME: an added content class, treated like 0 public to 3 restricted';

COMMENT ON COLUMN outrider.setting.entered IS 'of a rollup''s settings: what an operator wants instead of value; clamped, and if it is no number, value holds';

CREATE TABLE outrider.stream (
    subscription text NOT NULL,
    name text NOT NULL,
    "position" text NOT NULL,
    events bigint DEFAULT 0 NOT NULL,
    moved_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT stream_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255))),
    CONSTRAINT stream_position_check CHECK (((octet_length("position") >= 1) AND (octet_length("position") <= 255)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN outrider.stream."position" IS 'as the broker counts: everything up to here is written, or read, and committed here';

COMMENT ON COLUMN outrider.stream.events IS 'how many events were written, or came in';

CREATE TABLE outrider.stream_ahead (
    subscription text NOT NULL,
    event_id uuid NOT NULL
);

CREATE TABLE outrider.stream_mark (
    subscription text NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    positions jsonb NOT NULL,
    cursor jsonb NOT NULL
);

COMMENT ON COLUMN outrider.stream_mark.cursor IS 'the whole row of its cursor, read up to there';

CREATE TABLE outrider.stream_refused (
    id bigint NOT NULL,
    subscription text NOT NULL,
    stream text NOT NULL,
    "position" text NOT NULL,
    data bytea NOT NULL,
    message text NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE outrider.stream_refused ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outrider.stream_refused_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE outrider.stream_replayed (
    subscription text NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    seq bigint NOT NULL,
    event_id uuid NOT NULL,
    event_type text NOT NULL,
    payload jsonb,
    cycle integer NOT NULL,
    failure_history jsonb NOT NULL
);

CREATE TABLE outrider.takeover (
    name text NOT NULL,
    phase text DEFAULT 'rehearsal'::text NOT NULL,
    source text NOT NULL,
    brought bigint DEFAULT 0 NOT NULL,
    log_start bigint NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    cut_at timestamp with time zone,
    finished_at timestamp with time zone,
    CONSTRAINT takeover_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200))),
    CONSTRAINT takeover_phase_check CHECK ((phase = ANY (ARRAY['rehearsal'::text, 'taken'::text, 'finished'::text])))
);

COMMENT ON TABLE outrider.takeover IS 'tables whose rows become events or jobs';

COMMENT ON COLUMN outrider.takeover.name IS 'schema.table';

COMMENT ON COLUMN outrider.takeover.phase IS 'rehearsal: new rows are tried out, the old dispatcher has them; taken: new rows are published here';

COMMENT ON COLUMN outrider.takeover.source IS 'the source of the events and jobs that it makes';

COMMENT ON COLUMN outrider.takeover.brought IS 'how many rows the cut-over brought; the trigger takes the later ones';

COMMENT ON COLUMN outrider.takeover.log_start IS 'no event of it has a position below this one';

CREATE TABLE outrider.takeover_refused (
    name text NOT NULL,
    row_id text NOT NULL,
    error text NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL
);

COMMENT ON TABLE outrider.takeover_refused IS 'rows that could not become an event or a job; they stay owed';

CREATE VIEW outrider.tenant_event WITH (security_barrier='true') AS
 SELECT event_id,
    event_type,
    occurred_at,
    subscription,
    status,
    handled_at,
    erased_at
   FROM ( SELECT o.id AS event_id,
            o.seq,
            o.event_type,
            o.occurred_at,
            o.workspace_id,
            o.generation,
            s.name AS subscription,
                CASE
                    WHEN (h.event_id = o.id) THEN 'delivered'::text
                    WHEN (w.seq IS NOT NULL) THEN COALESCE((w.outcomes ->> s.name), told.outcome, 'withdrawn'::text)
                    WHEN (d.status = ANY (ARRAY['failed'::text, 'discarded'::text])) THEN d.status
                    WHEN (h.handler_name IS NOT NULL) THEN 'delivered'::text
                    WHEN (d.id IS NOT NULL) THEN d.status
                    WHEN place.passed THEN 'delivered'::text
                    ELSE 'pending'::text
                END AS status,
            d.attempts,
            d.run_at,
            h.handled_at,
            NULLIF(h.event_id, o.id) AS handled_as,
            d.last_error_code,
            d.last_error,
            COALESCE(d.failure_history,
                CASE
                    WHEN (h.event_id = o.id) THEN h.failure_history
                    ELSE NULL::jsonb
                END) AS failure_history,
            o.erased_at
           FROM (((((((outrider.outbox o
             CROSS JOIN outrider.subscription s)
             CROSS JOIN LATERAL ( SELECT
                        CASE s.kind
                            WHEN 'relay'::text THEN ((NOT starts_with(o.event_type, 'outrider.canary_'::text)) AND (s.forwards OR (o.origin IS NULL)) AND (((s.workspace_id IS NULL) OR (o.workspace_id = s.workspace_id)) IS TRUE))
                            ELSE ((o.target IS NULL) OR (o.target = s.context))
                        END AS addressed,
                    ((s.event_types IS NULL) OR (o.event_type = ANY (s.event_types))) AS wanted) fits)
             CROSS JOIN LATERAL ( SELECT ((o.seq <= c.seq) AND (NOT COALESCE(((o.tx = ANY (c.owing)) AND (o.seq > c.owed_after)), false)) AND (NOT ((o.seq > c.floor) AND (o.tx < c.horizon) AND (NOT pg_visible_in_snapshot(o.tx, c.inflight))))) AS passed
                   FROM outrider.cursor c
                  WHERE ((c.subscription = s.name) AND (c.generation = ANY (ARRAY[(0)::bigint, o.generation])) AND (c.partition = (COALESCE(hashtextextended(o.aggregate_id, (0)::bigint), o.seq) & ((s.partitions - 1))::bigint)))
                  ORDER BY c.generation DESC
                 LIMIT 1) place)
             LEFT JOIN LATERAL ( SELECT h_1.handler_name,
                    h_1.event_id,
                    h_1.handled_at,
                    h_1.failure_history
                   FROM outrider.event_handled h_1
                  WHERE ((h_1.handler_name = s.name) AND (h_1.idempotency_key = COALESCE((((COALESCE((((length(o.workspace_id) || ':'::text) || o.workspace_id) || ':'::text), ''::text) || o.event_type) || ':'::text) || o.idempotency_key), (o.id)::text)) AND ((h_1.event_id = o.id) OR fits.addressed))
                 LIMIT 1) h ON (true))
             LEFT JOIN LATERAL ( SELECT d_1.id,
                    d_1.status,
                    d_1.attempts,
                    d_1.run_at,
                    d_1.last_error_code,
                    d_1.last_error,
                    d_1.failure_history
                   FROM outrider.delivery d_1
                  WHERE ((d_1.subscription = s.name) AND (d_1.seq = o.seq))
                UNION ALL
                 SELECT j.id,
                    j.status,
                    j.attempts,
                    j.run_at,
                    j.last_error_code,
                    j.last_error,
                    j.failure_history
                   FROM outrider.job j
                  WHERE ((j.subscription = s.name) AND (j.seq = o.seq))
         LIMIT 1) d ON (true))
             LEFT JOIN LATERAL ( SELECT w_1.seq,
                    w_1.outcomes
                   FROM outrider.withdrawal w_1
                  WHERE (w_1.seq = o.seq)
                 LIMIT 1) w ON (true))
             LEFT JOIN LATERAL ( SELECT ((a.details -> 'outcomes'::text) ->> s.name) AS outcome
                   FROM outrider.audit a
                  WHERE ((w.seq IS NOT NULL) AND (a.event_id = o.id) AND (a.action = 'withdraw'::text) AND (((a.details -> 'outcomes'::text) ->> s.name) IS NOT NULL))
                  ORDER BY a.id
                 LIMIT 1) told ON (true))
          WHERE ((h.handler_name IS NOT NULL) OR (d.id IS NOT NULL) OR (told.outcome IS NOT NULL) OR (w.outcomes ? s.name) OR (fits.addressed AND fits.wanted AND ((NOT place.passed) OR ((s.kind = ANY (ARRAY['reader'::text, 'relay'::text])) AND (o.occurred_at >= s.created_at)))))) e
  WHERE (workspace_id = NULLIF(current_setting('app.workspace_id'::text, true), ''::text));

CREATE VIEW outrider.unfinished WITH (security_invoker='true') AS
 SELECT j.subscription,
    j.seq,
    j.status,
    j.run_at,
    j.lease_expires_at AS due_at
   FROM outrider.job j
  WHERE (j.status = 'in_flight'::text)
UNION ALL
 SELECT d.subscription,
    d.seq,
    d.status,
    d.run_at,
    d.run_at AS due_at
   FROM outrider.delivery d
  WHERE ((d.status = 'pending'::text) AND d.head AND d.reached)
UNION ALL
 SELECT d.subscription,
    d.seq,
    d.status,
    d.run_at,
    NULL::timestamp with time zone AS due_at
   FROM outrider.delivery d
  WHERE ((d.status = 'pending'::text) AND (NOT (d.head AND d.reached)))
UNION ALL
 SELECT j.subscription,
    j.seq,
    j.status,
    j.run_at,
    j.run_at AS due_at
   FROM outrider.job j
  WHERE ((j.status = 'pending'::text) AND (j.waits_for IS NULL) AND (j.crashes = 0))
UNION ALL
 SELECT j.subscription,
    j.seq,
    j.status,
    j.run_at,
    j.run_at AS due_at
   FROM outrider.job j
  WHERE ((j.status = 'pending'::text) AND (j.waits_for IS NULL) AND (j.crashes > 0))
UNION ALL
 SELECT j.subscription,
    j.seq,
    j.status,
    j.run_at,
    j.run_at AS due_at
   FROM outrider.job j
  WHERE (j.waits_for = 'time'::text)
UNION ALL
 SELECT j.subscription,
    j.seq,
    j.status,
    j.run_at,
    NULL::timestamp with time zone AS due_at
   FROM outrider.job j
  WHERE (j.waits_for = 'key'::text);

CREATE TABLE outrider.upkeep (
    task text NOT NULL,
    ran_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    page bigint DEFAULT 0 NOT NULL,
    oldest timestamp with time zone,
    next_at timestamp with time zone
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='200');

COMMENT ON COLUMN outrider.upkeep.page IS 'of a task that walks over a table: where it goes on';

COMMENT ON COLUMN outrider.upkeep.oldest IS 'the oldest row that it has met and left, in this round';

COMMENT ON COLUMN outrider.upkeep.next_at IS 'there is nothing to do for it before';

CREATE TABLE outrider.worker (
    id uuid NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    schema_version integer,
    generation bigint NOT NULL,
    strict boolean DEFAULT false NOT NULL,
    subscriptions text[] NOT NULL,
    unable text[] DEFAULT '{}'::text[] NOT NULL,
    queues text[],
    listening boolean DEFAULT false NOT NULL,
    stopping boolean DEFAULT false NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    seen_at timestamp with time zone DEFAULT now() NOT NULL,
    reported_at timestamp with time zone,
    report jsonb,
    backend integer,
    CONSTRAINT worker_report_check CHECK ((length((report)::text) <= 8192))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500');

COMMENT ON COLUMN outrider.worker.schema_version IS 'the newest migration that its code knows';

COMMENT ON COLUMN outrider.worker.unable IS 'subscriptions that want event types which its code does not know';

COMMENT ON COLUMN outrider.worker.queues IS 'null = jobs of every queue';

COMMENT ON COLUMN outrider.worker.reported_at IS 'later than seen_at: written by the watchdog of a worker whose event loop is held';

COMMENT ON COLUMN outrider.worker.report IS 'what runs longest there, and its troubles; seconds count back from reported_at';

COMMENT ON COLUMN outrider.worker.backend IS 'the process of the server that has the session of the heartbeat; null behind a pooler';

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s0 FOR VALUES FROM (MINVALUE) TO ('1000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s1 FOR VALUES FROM ('1000000') TO ('2000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s10 FOR VALUES FROM ('10000000') TO ('11000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s11 FOR VALUES FROM ('11000000') TO ('12000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s12 FOR VALUES FROM ('12000000') TO ('13000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s13 FOR VALUES FROM ('13000000') TO ('14000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s14 FOR VALUES FROM ('14000000') TO ('15000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s15 FOR VALUES FROM ('15000000') TO ('16000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s2 FOR VALUES FROM ('2000000') TO ('3000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s3 FOR VALUES FROM ('3000000') TO ('4000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s4 FOR VALUES FROM ('4000000') TO ('5000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s5 FOR VALUES FROM ('5000000') TO ('6000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s6 FOR VALUES FROM ('6000000') TO ('7000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s7 FOR VALUES FROM ('7000000') TO ('8000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s8 FOR VALUES FROM ('8000000') TO ('9000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_s9 FOR VALUES FROM ('9000000') TO ('10000000');

ALTER TABLE ONLY outrider.outbox ATTACH PARTITION outrider.outbox_tail FOR VALUES FROM ('16000000') TO (MAXVALUE);

ALTER TABLE ONLY outrider.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY outrider.cursor
    ADD CONSTRAINT cursor_pkey PRIMARY KEY (subscription, generation, partition);

ALTER TABLE ONLY outrider.delivery
    ADD CONSTRAINT delivery_pkey PRIMARY KEY (id);

ALTER TABLE ONLY outrider.event_handled
    ADD CONSTRAINT event_handled_pkey PRIMARY KEY (handler_name, idempotency_key);

ALTER TABLE ONLY outrider.job_limit
    ADD CONSTRAINT job_limit_pkey PRIMARY KEY (subscription);

ALTER TABLE ONLY outrider.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (id);

ALTER TABLE ONLY outrider.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);

ALTER TABLE ONLY outrider.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s0
    ADD CONSTRAINT outbox_s0_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s10
    ADD CONSTRAINT outbox_s10_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s11
    ADD CONSTRAINT outbox_s11_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s12
    ADD CONSTRAINT outbox_s12_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s13
    ADD CONSTRAINT outbox_s13_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s14
    ADD CONSTRAINT outbox_s14_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s15
    ADD CONSTRAINT outbox_s15_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s1
    ADD CONSTRAINT outbox_s1_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s2
    ADD CONSTRAINT outbox_s2_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s3
    ADD CONSTRAINT outbox_s3_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s4
    ADD CONSTRAINT outbox_s4_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s5
    ADD CONSTRAINT outbox_s5_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s6
    ADD CONSTRAINT outbox_s6_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s7
    ADD CONSTRAINT outbox_s7_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s8
    ADD CONSTRAINT outbox_s8_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_s9
    ADD CONSTRAINT outbox_s9_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.outbox_tail
    ADD CONSTRAINT outbox_tail_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.rollup_log
    ADD CONSTRAINT rollup_log_pkey PRIMARY KEY (id);

ALTER TABLE ONLY outrider.rollup_pending
    ADD CONSTRAINT rollup_pending_pkey PRIMARY KEY (id);

ALTER TABLE ONLY outrider.rollup
    ADD CONSTRAINT rollup_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outrider.rollup
    ADD CONSTRAINT rollup_slug_key UNIQUE (slug);

ALTER TABLE ONLY outrider.sample
    ADD CONSTRAINT sample_pkey PRIMARY KEY (minute);

ALTER TABLE ONLY outrider.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outrider.segment
    ADD CONSTRAINT segment_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outrider.setting
    ADD CONSTRAINT setting_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outrider.stream_ahead
    ADD CONSTRAINT stream_ahead_pkey PRIMARY KEY (subscription, event_id);

ALTER TABLE ONLY outrider.stream_mark
    ADD CONSTRAINT stream_mark_pkey PRIMARY KEY (subscription, at);

ALTER TABLE ONLY outrider.stream
    ADD CONSTRAINT stream_pkey PRIMARY KEY (subscription, name);

ALTER TABLE ONLY outrider.stream_refused
    ADD CONSTRAINT stream_refused_pkey PRIMARY KEY (id);

ALTER TABLE ONLY outrider.stream_replayed
    ADD CONSTRAINT stream_replayed_pkey PRIMARY KEY (subscription, at, seq);

ALTER TABLE ONLY outrider.subscription
    ADD CONSTRAINT subscription_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outrider.takeover
    ADD CONSTRAINT takeover_pkey PRIMARY KEY (name);

ALTER TABLE ONLY outrider.takeover_refused
    ADD CONSTRAINT takeover_refused_pkey PRIMARY KEY (name, row_id);

ALTER TABLE ONLY outrider.upkeep
    ADD CONSTRAINT upkeep_pkey PRIMARY KEY (task);

ALTER TABLE ONLY outrider.withdrawal
    ADD CONSTRAINT withdrawal_pkey PRIMARY KEY (seq);

ALTER TABLE ONLY outrider.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (id);

CREATE INDEX audit_by_name ON outrider.audit USING btree (by, id);

CREATE INDEX audit_by_role ON outrider.audit USING btree (role, id);

CREATE INDEX audit_of_event ON outrider.audit USING btree (event_id) WHERE (event_id IS NOT NULL);

CREATE INDEX audit_of_subscription ON outrider.audit USING btree (subscription, id) WHERE (subscription IS NOT NULL);

CREATE UNIQUE INDEX cursor_id ON outrider.cursor USING btree (id);

CREATE INDEX delivery_dead_since ON outrider.delivery USING btree (COALESCE(buried_at, created_at)) WHERE (status = ANY (ARRAY['failed'::text, 'discarded'::text]));

CREATE INDEX delivery_due ON outrider.delivery USING btree (subscription, generation, partition, run_at) WHERE ((status = 'pending'::text) AND head AND reached);

CREATE UNIQUE INDEX delivery_event ON outrider.delivery USING btree (subscription, seq);

CREATE INDEX delivery_failed ON outrider.delivery USING btree (subscription, id) WHERE (status = 'failed'::text);

CREATE INDEX delivery_fingerprint ON outrider.delivery USING btree (subscription, fingerprint) WHERE (status = 'failed'::text);

CREATE UNIQUE INDEX delivery_head ON outrider.delivery USING btree (subscription, generation, ordering_key) WHERE ((status = 'pending'::text) AND head AND (ordering_key IS NOT NULL));

CREATE INDEX delivery_line ON outrider.delivery USING btree (subscription, generation, ordering_key, seq) WHERE ((status = 'pending'::text) AND (ordering_key IS NOT NULL));

CREATE INDEX delivery_of_event ON outrider.delivery USING btree (event_id);

CREATE INDEX job_cancelled ON outrider.job USING btree (locked_by) WHERE ((status = 'in_flight'::text) AND (cancelled_at IS NOT NULL));

CREATE INDEX job_dead_since ON outrider.job USING btree (COALESCE(buried_at, created_at)) WHERE (status = ANY (ARRAY['failed'::text, 'discarded'::text]));

CREATE UNIQUE INDEX job_event ON outrider.job USING btree (subscription, seq) WHERE (seq IS NOT NULL);

CREATE INDEX job_failed ON outrider.job USING btree (subscription, id) WHERE (status = 'failed'::text);

CREATE INDEX job_fingerprint ON outrider.job USING btree (subscription, fingerprint) WHERE (status = 'failed'::text);

CREATE INDEX job_of_event ON outrider.job USING btree (event_id) WHERE (lease_token IS NULL);

CREATE UNIQUE INDEX job_once ON outrider.job USING btree (subscription, COALESCE(workspace_id, ''::text), unique_key) WHERE ((status = ANY (ARRAY['pending'::text, 'in_flight'::text])) AND (unique_key IS NOT NULL) AND (seq IS NOT NULL));

CREATE INDEX job_ready ON outrider.job USING btree (subscription, generation, queue, num_nonnulls(workspace_id), (((run_at AT TIME ZONE 'UTC'::text) - ((priority)::double precision * '00:01:00'::interval))), id) WHERE ((status = 'pending'::text) AND (waits_for IS NULL) AND (crashes = 0));

CREATE INDEX job_running ON outrider.job USING btree (subscription, lease_expires_at) WHERE (status = 'in_flight'::text);

CREATE INDEX job_scheduled ON outrider.job USING btree (subscription, run_at, id) WHERE (waits_for = 'time'::text);

CREATE INDEX job_suspect ON outrider.job USING btree (subscription, (((run_at AT TIME ZONE 'UTC'::text) - ((priority)::double precision * '00:01:00'::interval))), id) WHERE ((status = 'pending'::text) AND (waits_for IS NULL) AND (crashes > 0));

CREATE INDEX job_turn ON outrider.job USING btree (subscription, generation, queue, hashtextextended(workspace_id, (0)::bigint), (((run_at AT TIME ZONE 'UTC'::text) - ((priority)::double precision * '00:01:00'::interval))), id) WHERE ((status = 'pending'::text) AND (waits_for IS NULL) AND (crashes = 0) AND (workspace_id IS NOT NULL));

CREATE UNIQUE INDEX job_unique ON outrider.job USING btree (subscription, COALESCE(workspace_id, ''::text), unique_key) WHERE ((status = 'pending'::text) AND (unique_key IS NOT NULL) AND (seq IS NULL) AND (NOT closed));

CREATE INDEX job_unique_closed ON outrider.job USING btree (subscription, COALESCE(workspace_id, ''::text), unique_key) WHERE ((status = 'pending'::text) AND (seq IS NULL) AND closed);

CREATE INDEX job_unique_running ON outrider.job USING btree (subscription, COALESCE(workspace_id, ''::text), unique_key) WHERE ((status = 'in_flight'::text) AND (unique_key IS NOT NULL) AND (seq IS NULL));

CREATE INDEX job_waiting ON outrider.job USING btree (subscription, COALESCE(workspace_id, ''::text), job_key, queue, generation, (((run_at AT TIME ZONE 'UTC'::text) - ((priority)::double precision * '00:01:00'::interval))), id) WHERE (waits_for = 'key'::text);

CREATE INDEX outbox_id ON ONLY outrider.outbox USING btree (id);

CREATE INDEX outbox_s0_id_idx ON outrider.outbox_s0 USING btree (id);

CREATE INDEX outbox_tx_seq ON ONLY outrider.outbox USING btree (tx, seq);

CREATE INDEX outbox_s0_tx_seq_idx ON outrider.outbox_s0 USING btree (tx, seq);

CREATE INDEX outbox_s10_id_idx ON outrider.outbox_s10 USING btree (id);

CREATE INDEX outbox_s10_tx_seq_idx ON outrider.outbox_s10 USING btree (tx, seq);

CREATE INDEX outbox_s11_id_idx ON outrider.outbox_s11 USING btree (id);

CREATE INDEX outbox_s11_tx_seq_idx ON outrider.outbox_s11 USING btree (tx, seq);

CREATE INDEX outbox_s12_id_idx ON outrider.outbox_s12 USING btree (id);

CREATE INDEX outbox_s12_tx_seq_idx ON outrider.outbox_s12 USING btree (tx, seq);

CREATE INDEX outbox_s13_id_idx ON outrider.outbox_s13 USING btree (id);

CREATE INDEX outbox_s13_tx_seq_idx ON outrider.outbox_s13 USING btree (tx, seq);

CREATE INDEX outbox_s14_id_idx ON outrider.outbox_s14 USING btree (id);

CREATE INDEX outbox_s14_tx_seq_idx ON outrider.outbox_s14 USING btree (tx, seq);

CREATE INDEX outbox_s15_id_idx ON outrider.outbox_s15 USING btree (id);

CREATE INDEX outbox_s15_tx_seq_idx ON outrider.outbox_s15 USING btree (tx, seq);

CREATE INDEX outbox_s1_id_idx ON outrider.outbox_s1 USING btree (id);

CREATE INDEX outbox_s1_tx_seq_idx ON outrider.outbox_s1 USING btree (tx, seq);

CREATE INDEX outbox_s2_id_idx ON outrider.outbox_s2 USING btree (id);

CREATE INDEX outbox_s2_tx_seq_idx ON outrider.outbox_s2 USING btree (tx, seq);

CREATE INDEX outbox_s3_id_idx ON outrider.outbox_s3 USING btree (id);

CREATE INDEX outbox_s3_tx_seq_idx ON outrider.outbox_s3 USING btree (tx, seq);

CREATE INDEX outbox_s4_id_idx ON outrider.outbox_s4 USING btree (id);

CREATE INDEX outbox_s4_tx_seq_idx ON outrider.outbox_s4 USING btree (tx, seq);

CREATE INDEX outbox_s5_id_idx ON outrider.outbox_s5 USING btree (id);

CREATE INDEX outbox_s5_tx_seq_idx ON outrider.outbox_s5 USING btree (tx, seq);

CREATE INDEX outbox_s6_id_idx ON outrider.outbox_s6 USING btree (id);

CREATE INDEX outbox_s6_tx_seq_idx ON outrider.outbox_s6 USING btree (tx, seq);

CREATE INDEX outbox_s7_id_idx ON outrider.outbox_s7 USING btree (id);

CREATE INDEX outbox_s7_tx_seq_idx ON outrider.outbox_s7 USING btree (tx, seq);

CREATE INDEX outbox_s8_id_idx ON outrider.outbox_s8 USING btree (id);

CREATE INDEX outbox_s8_tx_seq_idx ON outrider.outbox_s8 USING btree (tx, seq);

CREATE INDEX outbox_s9_id_idx ON outrider.outbox_s9 USING btree (id);

CREATE INDEX outbox_s9_tx_seq_idx ON outrider.outbox_s9 USING btree (tx, seq);

CREATE INDEX outbox_tail_id_idx ON outrider.outbox_tail USING btree (id);

CREATE INDEX outbox_tail_tx_seq_idx ON outrider.outbox_tail USING btree (tx, seq);

CREATE INDEX rollup_log_newest ON outrider.rollup_log USING btree (rollup, run_at);

CREATE INDEX rollup_pending_aside ON outrider.rollup_pending USING btree (rollup, id) WHERE ((processed_at IS NULL) AND (set_aside_at IS NOT NULL));

CREATE INDEX rollup_pending_done ON outrider.rollup_pending USING btree (rollup, processed_at) WHERE (processed_at IS NOT NULL);

CREATE INDEX rollup_pending_waiting ON outrider.rollup_pending USING btree (rollup, id) WHERE ((processed_at IS NULL) AND (set_aside_at IS NULL));

CREATE INDEX stream_refused_of ON outrider.stream_refused USING btree (subscription, id);

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s0_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s0_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s0_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s10_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s10_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s10_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s11_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s11_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s11_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s12_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s12_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s12_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s13_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s13_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s13_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s14_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s14_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s14_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s15_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s15_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s15_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s1_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s1_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s1_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s2_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s2_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s2_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s3_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s3_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s3_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s4_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s4_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s4_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s5_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s5_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s5_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s6_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s6_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s6_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s7_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s7_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s7_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s8_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s8_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s8_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_s9_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_s9_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_s9_tx_seq_idx;

ALTER INDEX outrider.outbox_id ATTACH PARTITION outrider.outbox_tail_id_idx;

ALTER INDEX outrider.outbox_pkey ATTACH PARTITION outrider.outbox_tail_pkey;

ALTER INDEX outrider.outbox_tx_seq ATTACH PARTITION outrider.outbox_tail_tx_seq_idx;

CREATE TRIGGER accept_event BEFORE INSERT OR UPDATE ON outrider.outbox FOR EACH ROW EXECUTE FUNCTION outrider.accept_event();

CREATE TRIGGER await_changed_time BEFORE UPDATE OF run_at ON outrider.job FOR EACH ROW EXECUTE FUNCTION outrider.await_time();

CREATE TRIGGER await_time BEFORE INSERT ON outrider.job FOR EACH ROW WHEN ((new.run_at > clock_timestamp())) EXECUTE FUNCTION outrider.await_time();

CREATE TRIGGER make_counter AFTER INSERT OR DELETE ON outrider.cursor FOR EACH ROW EXECUTE FUNCTION outrider.make_counter();

CREATE CONSTRAINT TRIGGER refuse_retention AFTER INSERT OR DELETE OR UPDATE ON outrider.setting DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION outrider.refuse_retention();

CREATE TRIGGER refuse_unbounded BEFORE INSERT ON outrider.job FOR EACH ROW WHEN (((octet_length(concat(new.subscription, new.event_type, new.source, new.workspace_id)) > 581) OR (octet_length((new.trace_context)::text) > 16384) OR (pg_column_size(new.payload) > 4000) OR (octet_length((new.payload)::text) > 8192))) EXECUTE FUNCTION outrider.refuse_unbounded();

CREATE TRIGGER refuse_unbounded_change BEFORE UPDATE OF payload ON outrider.job FOR EACH ROW EXECUTE FUNCTION outrider.refuse_unbounded();

CREATE TRIGGER refuse_unbounded_payload BEFORE INSERT OR UPDATE OF payload ON outrider.delivery FOR EACH ROW WHEN ((new.payload IS NOT NULL)) EXECUTE FUNCTION outrider.refuse_unbounded_payload();

CREATE CONSTRAINT TRIGGER refuse_unsettled AFTER UPDATE OF takes ON outrider.cursor DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ((old.takes IS DISTINCT FROM new.takes)) EXECUTE FUNCTION outrider.refuse_unsettled();

ALTER TABLE ONLY outrider.cursor
    ADD CONSTRAINT cursor_subscription_fkey FOREIGN KEY (subscription) REFERENCES outrider.subscription(name) ON UPDATE CASCADE ON DELETE CASCADE;

ALTER TABLE ONLY outrider.job_limit
    ADD CONSTRAINT job_limit_subscription_fkey FOREIGN KEY (subscription) REFERENCES outrider.subscription(name) ON UPDATE CASCADE ON DELETE CASCADE;

ALTER TABLE ONLY outrider.rollup_log
    ADD CONSTRAINT rollup_log_rollup_fkey FOREIGN KEY (rollup) REFERENCES outrider.rollup(name) ON UPDATE CASCADE ON DELETE CASCADE;

ALTER TABLE ONLY outrider.stream_ahead
    ADD CONSTRAINT stream_ahead_subscription_fkey FOREIGN KEY (subscription) REFERENCES outrider.subscription(name) ON UPDATE CASCADE ON DELETE CASCADE;

ALTER TABLE ONLY outrider.stream_mark
    ADD CONSTRAINT stream_mark_subscription_fkey FOREIGN KEY (subscription) REFERENCES outrider.subscription(name) ON UPDATE CASCADE ON DELETE CASCADE;

ALTER TABLE ONLY outrider.stream_refused
    ADD CONSTRAINT stream_refused_subscription_fkey FOREIGN KEY (subscription) REFERENCES outrider.subscription(name) ON UPDATE CASCADE ON DELETE CASCADE;

ALTER TABLE ONLY outrider.stream_replayed
    ADD CONSTRAINT stream_replayed_subscription_fkey FOREIGN KEY (subscription) REFERENCES outrider.subscription(name) ON UPDATE CASCADE ON DELETE CASCADE;

ALTER TABLE ONLY outrider.stream
    ADD CONSTRAINT stream_subscription_fkey FOREIGN KEY (subscription) REFERENCES outrider.subscription(name) ON UPDATE CASCADE ON DELETE CASCADE;

ALTER TABLE ONLY outrider.takeover_refused
    ADD CONSTRAINT takeover_refused_name_fkey FOREIGN KEY (name) REFERENCES outrider.takeover(name) ON DELETE CASCADE;

REVOKE ALL ON FUNCTION outrider.accept_event() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.admit(p_names text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.admit_scheduled(p_names text[], p_moment timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.allow_content_class(p_name text, p_like text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.as_long_text(p_value jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.as_pretty_text(p_value jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.as_text(p_value jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.attach_part(p_name text, p_first bigint, p_last bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.attach_segment(p_name text, p_days integer, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.await_time() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.batch_bytes() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.bounded(p_payload jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.bury(p_delivery bigint, p_code text, p_message text, p_worker text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.canary_begin(p_name text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.canary_end(p_name text, p_event uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.canary_send(p_name text, p_generation bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.cancel(p_job_id uuid, p_by text, p_reason text, p_subscription text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.cancel_job(p_job outrider.job, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.change_jobs(p_action text, p_jobs bigint[], p_states text[], p_by text, p_reason text, p_which jsonb, OUT changed integer, OUT stopping integer, OUT skipped integer, OUT held bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.claim(p_worker uuid, p_names text[], p_limit integer, p_generation bigint, p_queues text[], p_suspect boolean, p_strict boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.claim_at(p_job outrider.job) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.claim_lane(p_worker uuid, p_subscription text, p_generation bigint, p_queue text, p_since timestamp with time zone, p_limit integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.claimable(p_job outrider.job) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.close_kept(p_lanes outrider.lane[], p_suspects text[], p_until timestamp without time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.uuid7() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.concerns(p_event outrider.outbox, p_subscription outrider.subscription) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.count_deaths(p_cursor outrider.cursor, p_excused integer, OUT batch bigint, OUT excused bigint, OUT deaths bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.count_take(p_cursor bigint, p_takes integer, p_excused integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.error_fingerprint(p_code text, p_message text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.dead_letters(p_subscription text, p_event_type text, p_error_code text, p_fingerprint text, p_since timestamp with time zone, p_until timestamp with time zone, p_workspace_id text, p_generation bigint, p_after bigint, p_limit bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.debts(p_segment outrider.segment) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.discard(p_deliveries bigint[], p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.divert(p_cursor outrider.cursor, p_ordering text, p_seqs bigint[], p_suspicious boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.enqueue(job_type text, payload jsonb, run_at timestamp with time zone, priority integer, unique_key text, on_conflict text, queue text, key text, job_version integer, source text, workspace_id text, trace_context jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.enqueue_one(p_job_type text, p_payload jsonb, p_id uuid, p_run_at timestamp with time zone, p_priority integer, p_unique_key text, p_on_conflict text, p_queue text, p_key text, p_version integer, p_source text, p_workspace_id text, p_trace_context jsonb, p_generation bigint, p_poke boolean, p_caused_by uuid, OUT job_id uuid, OUT outcome text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.enqueue_onto(p_job_type text, p_payload jsonb, p_run_at timestamp with time zone, p_priority integer, p_unique_key text, p_on_conflict text, p_queue text, p_key text, p_version integer, p_source text, p_workspace_id text, p_trace_context jsonb, p_generation bigint, OUT job_id uuid, OUT outcome text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.erase(p_workspace_id text, p_kind text, p_subject text, p_jobs boolean, p_from text, p_after bigint, p_scan integer, p_reason text, p_by text, p_audit bigint, OUT place bigint, OUT audit bigint, OUT events bigint, OUT jobs bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.erase_events(p_source text, p_seqs bigint[], p_ids uuid[], p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.erase_jobs(p_jobs bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.erase_receipts(p_workspace_id text, p_subject text, p_jobs boolean, p_page bigint, p_pages integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.erase_rest(p_workspace_id text, p_subject text, p_jobs boolean, p_audit bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.failure(p_cycle integer, p_attempt integer, p_code text, p_message text, p_worker text, p_batch text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.fire(p_name text, p_seen timestamp with time zone, p_to timestamp with time zone, p_times timestamp with time zone[], p_job_type text, p_payload jsonb, p_queue text, p_priority integer, p_version integer, p_source text, p_key text, p_workspace_id text, p_generation bigint, p_poke boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.fitting(p_payloads text, p_ids bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.fold_generation(p_subscription text, p_generation bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.foreign_floor(p_now pg_snapshot) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.forget_receipts(p_deliveries bigint[], p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.forget_workers(p_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.generation_channel(p_generation bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.gone_job(p_job_id uuid, p_subscription text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.has_workers(p_subscription text, p_generation bigint, p_queue text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.hold_limits(p_names text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.hold_partitions(p_deliveries bigint[], p_new_generation bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.hold_subscription(p_name text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.in_lane(p_job outrider.job, p_lane outrider.lane) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.in_turn(p_job outrider.job, p_lane outrider.lane) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.in_workspace(p_workspace_id text, p_name text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.ingest(p_subscription text, p_stream text, p_after text, p_position text, p_channel text, p_generation bigint, p_id text[], p_event_type text[], p_event_version integer[], p_occurred_at text[], p_source text[], p_target text[], p_content_class text[], p_workspace_id text[], p_aggregate_kind text[], p_aggregate_id text[], p_entity_version bigint[], p_payload text[], p_idempotency_key text[], p_trace_context text[], OUT outcome text, OUT events bigint, OUT stands text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.is_live(p_seen_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.is_withdrawn(p_seq bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.jobs_page(p_type text, p_queue text, p_key text, p_workspace_id text, p_states text[], p_payload jsonb, p_after bigint, p_until bigint, p_scan integer, p_classes text[], OUT place bigint, OUT searched integer, OUT jobs bigint[], OUT states text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.keep_sample(p_seq bigint, p_waiting double precision, p_owed bigint, p_dead bigint, p_handled bigint, p_failed bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.lanes(p_names text[], p_generation bigint, p_queues text[], p_strict boolean, OUT lanes outrider.lane[], OUT partly boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.late_transactions(p_inflight pg_snapshot, p_horizon xid8, p_now pg_snapshot, p_floor bigint, p_upto bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.lease(p_places tid[], p_worker uuid, p_moment timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.lock_cursor(p_subscription text, p_partition integer, p_generation bigint, p_armed bigint, OUT outcome text, OUT locked outrider.cursor, OUT drawn bigint, OUT home bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.log_holders() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.log_home() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.make_counter() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.make_due(p_job outrider.job) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.make_jobs(p_subscription text, p_seqs bigint[], p_queue text, p_priority integer, OUT made bigint, OUT held bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.make_segment(p_first bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.move_generation(p_from bigint, p_to bigint, p_by text, p_subscription text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.narrow(p_name text, p_types text[], p_force boolean, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.next_retry(p_subscription text, p_generation bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.note(p_action text, p_by text, p_reason text, p_subscription text, p_event_id uuid, p_details jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.note_adoption(p_subscription text, p_stream text, p_before text, p_position text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.note_export(p_workspace_id text, p_kind text, p_subject text, p_by text, p_reason text, p_audit bigint, p_events bigint, p_jobs bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.note_segments() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.notify(p_channel text, p_kind text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.obstacle(p_cursor outrider.cursor, p_subscription outrider.subscription, p_knows text[], p_armed bigint, p_first_seq bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.open_generation(p_subscription text, p_generation bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.operates() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.ordering_key(p_ordering text, p_workspace_id text, p_aggregate_id text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.outbox_replay(p_event_id uuid, p_new_generation bigint, p_replayed_by text, p_subscription text, p_force boolean, p_payload jsonb, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.overdue_rollups() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.owed_of(p_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.owes(p_cursor outrider.cursor, p_first bigint, p_last bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.park(p_subscription text, p_cursor bigint, p_failed jsonb, p_armed bigint, p_worker text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.pass_over(p_subscription text, p_generation bigint, p_scan integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.pause(p_name text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.pause_all(p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.pause_schedule(p_name text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.pick(p_lanes outrider.lane[], p_wanted integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.pick_limited(p_lanes outrider.lane[], p_wanted integer, p_chosen tid[], OUT places tid[], OUT cut boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.pick_suspect(p_names text[], p_generation bigint, p_queues text[], p_limited boolean, p_strict boolean, OUT places tid[], OUT held boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.promote(p_subscription text, p_generation bigint, p_lines text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.publish(event_type text, payload jsonb, key text, idempotency_key text, event_version integer, source text, target text, content_class text, channel_class text, workspace_id text, aggregate_kind text, entity_version bigint, occurred_at timestamp with time zone, trace_context jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.read(p_cursor outrider.cursor, p_subscription outrider.subscription, p_drawn bigint, p_home bigint, p_limit integer, p_scan integer, OUT outcome text, OUT seqs bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.reap(p_names text[], p_worker uuid, p_limit integer, p_begun bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.receipt_key(p_workspace_id text, p_event_type text, p_idempotency_key text, p_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.refuse_nobody(p_workspace_id text, p_kind text, p_subject text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.refuse_retention() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.refuse_served(p_name text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.refuse_unbounded() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.refuse_unbounded_payload() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.refuse_unsettled() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.register(p_name text, p_kind text, p_context text, p_event_types text[], p_partitions integer, p_start text, p_ordering text, OUT outcome text, OUT partitions integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.register_job(p_name text, p_lease interval, p_timeout interval, p_concurrency integer, p_key_concurrency integer, p_keep interval) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.register_relay(p_name text, p_workspace_id text, p_forwards boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.relay_ahead(p_subscription text, p_events uuid[], OUT strangers bigint, OUT stranger uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.relay_hold(p_subscription text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.relay_mark(p_subscription text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.relay_only(p_subscription text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.relay_open(p_subscription text, p_streams text[], p_positions text[], p_adopt boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.relay_reject(p_subscription text, p_seq bigint, p_code text, p_message text, p_worker text, p_delay interval, p_most integer, p_bury boolean, OUT attempts integer, OUT buried boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.relay_rewind(p_subscription text, p_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.relay_settle(p_subscription text, p_streams text[], p_positions text[], p_events bigint[], p_sent bigint[], p_passed bigint[], p_found uuid[], p_done boolean, p_mark boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.relay_take(p_subscription text, p_limit integer, p_scan integer, p_knows text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.release(p_job outrider.job, p_verdict text, p_delay double precision, p_code text, p_message text, p_counted boolean, p_worker text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rename(p_old text, p_new text, p_force boolean, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.renew(p_worker uuid, p_names text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.replace_closed(p_job_type text, p_unique_key text, p_workspace_id text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.replay(p_deliveries bigint[], p_replayed_by text, p_new_generation bigint, p_force boolean, p_payload jsonb, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.replay_events(p_deliveries bigint[], p_new_generation bigint, p_payload jsonb, p_mark jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.replay_jobs(p_jobs bigint[], p_new_generation bigint, p_payload jsonb, p_mark jsonb, p_reason jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.resume(p_name text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.resume_all(p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.resume_schedule(p_name text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.retire(p_name text, p_force boolean, p_by text, p_reason text, OUT unread bigint, OUT more boolean, OUT waiting bigint, OUT dead bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rewrite(p_job outrider.job) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_check_key(p_spec jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_check_sql(p_spec jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_commands(p_spec jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_emit(p_rollup outrider.rollup, p_ids bigint[], p_threshold integer, OUT groups_emitted bigint, OUT pieces_emitted bigint, OUT conflicts_skipped bigint, OUT rows_marked bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_fault(p_rollup outrider.rollup, p_ids bigint[], p_threshold integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_faulty_groups(p_rollup outrider.rollup, p_ids bigint[], p_ends integer[], p_threshold integer, OUT faulty integer[], OUT undecided integer[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_faulty_rows(p_rollup outrider.rollup, p_ids bigint[], p_threshold integer, OUT faulty bigint[], OUT reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_install(p_spec jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_is_outage(p_sqlstate text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_lock(p_spec jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_others(p_source regclass) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_parts(p_spec jsonb, OUT slug text, OUT source regclass, OUT parent regclass, OUT parent_on text, OUT condition text, OUT workspace text, OUT group_key text, OUT carried text, OUT key_table regclass, OUT key_columns text[], OUT scheduler text, OUT job text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_plan(p_name text, p_force boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_preflight(p_spec jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_retry(p_name text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_rows(p_ids bigint[], p_ends integer[], p_first integer, p_last integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_run(p_name text, p_flush boolean, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_settings(p_name text, OUT debounce interval, OUT threshold integer, OUT max_wait interval, OUT complaints text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_sift(p_rollup outrider.rollup, p_ids bigint[], p_ends integer[], p_threshold integer, OUT good bigint[], OUT aside bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_tick(p_name text, p_flush boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_undo(p_spec jsonb, p_noted jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_undo_made(p_spec jsonb, p_noted jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_uninstall(p_name text, p_force boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_verify(p_name text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_work(p_name text, p_flush boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.rollup_work_noted(p_name text, p_flush boolean, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.room(p_subscription text, p_key text, p_workspace_id text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.route(p_subscription text, p_limit integer, p_scan integer, p_knows text[], p_queue text, p_priority integer, OUT outcome text, OUT routed bigint, OUT due_in double precision) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.run_now(p_job_id uuid, p_subscription text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.run_schedule(p_name text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.sample_due() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.scrubbed(p_history jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.sees_all(p_caller boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.sees_every_tenant(p_role name) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.set_setting(p_name text, p_value text, p_by text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.setting_value(p_name text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.settle(p_batch bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.settle_done(p_names text[], p_done bigint[], p_tokens bigint[], p_results jsonb[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.settle_jobs(p_names text[], p_done bigint[], p_tokens bigint[], p_results jsonb[], p_others jsonb, p_worker text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.signed(p_by text) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.stored_at_most(p_value jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.stored_bytes(p_value jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.take(p_subscription text, p_partition integer, p_limit integer, p_scan integer, p_generation bigint, p_knows text[], p_armed bigint, p_excused integer, p_worker text, p_careful boolean, p_alone boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.take_parked(p_subscription text, p_cursor outrider.cursor, p_limit integer, p_armed bigint, p_suspicious boolean, p_excused bigint, p_head outrider.taken, p_worker text, p_alone boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.take_turns(p_lanes outrider.lane[], p_wanted integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.tenant_page(p_workspace_id text, p_kind text, p_subject text, p_jobs boolean, p_from text, p_after bigint, p_scan integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.tenants_due(p_lanes outrider.lane[], p_most integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.tenants_plan(p_enable boolean, p_roles text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.unread(p_name text, p_scan integer, OUT events bigint, OUT more boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.upkeep_begin(p_every interval) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.upkeep_dead_letters(p_dry boolean, p_limit integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.upkeep_lock() FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.upkeep_log(p_dry boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.upkeep_reap(p_dry boolean, p_limit integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.upkeep_receipts(p_dry boolean, p_pages integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.upkeep_segments(p_dry boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.upkeep_traces(p_dry boolean, p_limit integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.waiting_behind(p_event_id uuid, p_subscription text, p_after bigint, p_limit integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.waiting_events(p_subscription text, p_after text, p_limit integer, p_most integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.wake(p_names text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.wake_jobs(p_names text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.wanted(p_event outrider.outbox, p_subscription outrider.subscription, p_cursor outrider.cursor, p_others bigint[], p_withdrawn boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION outrider.withdraw(p_event_id uuid, p_by text, p_reason text) FROM PUBLIC;
