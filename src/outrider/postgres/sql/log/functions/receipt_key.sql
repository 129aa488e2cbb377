-- receipt_key: the key of an event's receipts, as event_handled.idempotency_key. An idempotency key from the publisher is scoped by
-- workspace and type; without one, the key is the event's id. The planner inlines it.
create or replace function /*schema*/receipt_key(p_workspace_id text, p_event_type text, p_idempotency_key text, p_id uuid)
    returns text
    language sql stable
    return coalesce(/*schema*/in_workspace(p_workspace_id, p_event_type || ':' || p_idempotency_key), p_id::pg_catalog.text);
