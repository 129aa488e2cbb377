-- refuse_unbounded: the trigger of job, for what producers write. See bounded.
-- Not a CHECK constraint, which Postgres reads from text anew for each statement, and checks at each claim too.
create or replace function /*schema*/refuse_unbounded() returns trigger
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
