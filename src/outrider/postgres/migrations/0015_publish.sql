-- A publish costs less: one trigger for each row instead of CHECK constraints and a transition table. See accept_event.
-- breaking: no
-- functions: c35150f557e8b53a

create function /*schema*/accept_event() returns trigger language plpgsql as 'begin return new; end';
create trigger accept_event before insert or update on /*schema*/outbox
    for each row execute function /*schema*/accept_event();
alter table /*schema*/outbox
    drop constraint outbox_aggregate_id_check,
    drop constraint outbox_aggregate_kind_check,
    drop constraint outbox_channel_check,
    drop constraint outbox_content_class_known,
    drop constraint outbox_event_type_check,
    drop constraint outbox_event_version_check,
    drop constraint outbox_generation_check,
    drop constraint outbox_idempotency_key_check,
    drop constraint outbox_occurred_at_check,
    drop constraint outbox_origin_check,
    drop constraint outbox_payload_bounded,
    drop constraint outbox_source_check,
    drop constraint outbox_target_check,
    drop constraint outbox_trace_context_bounded,
    drop constraint outbox_workspace_id_check;
drop trigger notify_inserted on /*schema*/outbox;
drop function /*schema*/notify_inserted();
