-- ingest: insert what an inbox has read as events of this log, each once: an event with a receipt of this inbox is skipped.
-- Events, receipts and the position commit together.
--
-- p_after: the position from which the caller read. If the inbox is elsewhere, another session has read, and nothing is written.
-- p_position: the position up to which it read. The arrays are the columns of the events, in the order of the stream.
-- Locks:  the row of the stream, until the transaction ends.
-- Returns ingested, and how many events are new; or moved or paused; and the position of the inbox.
create or replace function /*schema*/ingest(
    p_subscription text, p_stream text, p_after text, p_position text, p_channel text, p_generation bigint,
    p_id text[], p_event_type text[], p_event_version integer[], p_occurred_at text[], p_source text[], p_target text[],
    p_content_class text[], p_workspace_id text[], p_aggregate_kind text[], p_aggregate_id text[],
    p_entity_version bigint[], p_payload text[], p_idempotency_key text[], p_trace_context text[],
    out outcome text, out events bigint, out stands text
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set jit = off
as $$
#variable_conflict use_column
begin
    perform /*schema*/sees_all();
    select s.position into stands from /*schema*/stream as s
    where s.subscription = p_subscription and s.name = p_stream for update;
    events := 0;
    if stands is distinct from p_after then
        outcome := 'moved';
        return;
    end if;
    if exists (select from /*schema*/subscription as s where s.name = p_subscription and s.paused_at is not null)
       or exists (select from /*schema*/setting as s where s.name = 'paused' and s.value <> 0) then
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
        insert into /*schema*/outbox (
            id, event_type, event_version, occurred_at, source, target, content_class, channel, generation, workspace_id,
            aggregate_kind, aggregate_id, entity_version, payload, idempotency_key, trace_context, origin)
        select e.id::uuid, e.event_type, e.event_version, coalesce(e.occurred_at::timestamptz, clock_timestamp()), e.source, e.target, e.content_class,
               p_channel, p_generation, e.workspace_id, e.aggregate_kind, e.aggregate_id, e.entity_version,
               e.payload::jsonb, e.idempotency_key, e.trace_context::jsonb, p_subscription
        from told as e
        where not exists (select from /*schema*/event_handled as h
                          where h.handler_name = p_subscription and h.idempotency_key = e.id)
        order by e.place
        returning id, seq, generation, content_class
    ),
    receipts as (
        insert into /*schema*/event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
        select p_subscription, born.id::text, born.id, born.seq, born.generation, born.content_class from born
        returning 1
    )
    select count(*) into events from receipts;
    update /*schema*/stream as s
    set position = p_position, events = s.events + ingest.events, moved_at = clock_timestamp()
    where s.subscription = p_subscription and s.name = p_stream;
    outcome := 'ingested';
    stands := p_position;
end
$$;
