-- publish: append one event from SQL, in the caller's transaction: for triggers, psql and other languages.
-- One insert; locks nothing. generation and workspace default to the session's settings outrider.generation and
-- app.workspace_id. Raises OR004 (or a check violation of the table) for what the Python publish refuses; as always in
-- SQL, that ends the transaction unless it is caught in a savepoint or an exception block.
create or replace function /*schema*/publish(
    event_type text, payload jsonb, key text default null, idempotency_key text default null,
    event_version integer default 1, source text default 'sql', target text default null,
    content_class text default 'internal', channel_class text default null, workspace_id text default null,
    aggregate_kind text default null, entity_version bigint default null, occurred_at timestamptz default null,
    trace_context jsonb default null
) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    generation bigint := coalesce(nullif(current_setting('outrider.generation', true), '')::bigint, 0);
    bytes      bigint := octet_length(nullif(/*schema*/as_text(payload), ''));
    allowed    bigint := (select s.value from /*schema*/setting as s where s.name = 'payload_max_bytes');
    event_id   uuid := /*schema*/uuid7();
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

    insert into /*schema*/outbox (
        id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
        aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context)
    values (
        event_id, event_type, event_version, coalesce(occurred_at, clock_timestamp()), source, target, content_class,
        coalesce('outbox_gen_' || generation || '_' || channel_class, /*schema*/generation_channel(generation)),
        generation, coalesce(workspace_id, nullif(current_setting('app.workspace_id', true), '')),
        aggregate_kind, key, entity_version, payload, idempotency_key, trace_context);
    return event_id;
end
$$;
