-- accept_event: the trigger of the log, for each row of every writer. It refuses what readers could not read, and wakes workers.
-- Not CHECK constraints: Postgres reads those from text anew for each statement, which took half of a publish in the server (29 of
-- 50 µs; these checks take 6). It refuses in their words, under their names.
-- A statement that notifies by itself, or shall not, has put its time into outrider.notified. A trigger that publishes runs in the
-- same statement: then the depth is above 1.
-- With the rights of the owner: whoever may insert needs no other right.
create or replace function /*schema*/accept_event() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    broken text := case
        when octet_length(new.aggregate_id) not between 1 and 512 then 'outbox_aggregate_id_check'
        when octet_length(new.aggregate_kind) not between 1 and 200 then 'outbox_aggregate_kind_check'
        when octet_length(new.channel) not between 1 and 63 then 'outbox_channel_check'
        -- In this order: only an added class is looked up, by a function, because a subquery here would slow down every publish.
        when new.content_class not in ('public', 'internal', 'confidential', 'restricted')
             and /*schema*/setting_value('content_class.' || new.content_class) is null then 'outbox_content_class_known'
        when octet_length(new.event_type) not between 1 and 200 then 'outbox_event_type_check'
        when new.event_version < 1 then 'outbox_event_version_check'
        when new.generation < 0 then 'outbox_generation_check'
        when octet_length(new.idempotency_key) not between 1 and 512 then 'outbox_idempotency_key_check'
        -- Within what drivers can hold: a time that no reader can read would stop every reader.
        when new.occurred_at not between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z' then 'outbox_occurred_at_check'
        when octet_length(new.origin) not between 1 and 63 then 'outbox_origin_check'
        when not (pg_column_size(new.payload) <= 4000 and octet_length(new.payload::text) <= 8192
                  or /*schema*/bounded(new.payload)) then 'outbox_payload_bounded'
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
        told := /*schema*/notify(new.channel, new.event_type) is not null;  -- PERFORM would start a query
    end if;
    return new;
end
$$;
