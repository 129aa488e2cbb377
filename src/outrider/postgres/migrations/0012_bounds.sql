-- Bounds: no producer can stop the others.
-- breaking: no
-- functions: 1e68dbbc5fc0f4f6

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
