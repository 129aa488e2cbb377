-- outbox_replay: the dead letters of an event become pending again, due now, with all their attempts before them.
--
-- One row back per subscription: replayed; skipped_handled (there is a receipt for its idempotency key, so nothing is to be
-- done); not_found (neither a dead letter nor handled there, or anywhere when none is named). The failure history stays and
-- gets a marker; the next attempts are a new cycle. It comes after what was handled of its key in the meantime.
-- p_new_generation: null, or the generation in which it is.
-- Locks:  the cursor rows of the partitions, waiting: nobody takes the line while it changes.
create or replace function /*schema*/outbox_replay(
    p_event_id uuid, p_new_generation bigint default null, p_replayed_by text default null,
    p_subscription text default null
) returns table (subscription text, outcome text)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = off
as $$
#variable_conflict use_column
declare
    dead  /*schema*/delivery;
    found boolean := false;
    told  text[] := '{}';
begin
    for dead in
        select d.* from /*schema*/delivery as d
        where d.event_id = p_event_id and d.status = 'failed' and d.subscription = coalesce(p_subscription, d.subscription)
        order by d.subscription, d.seq
    loop
        if p_new_generation <> dead.generation then
            raise 'event % is of generation %, and cannot be replayed in generation %',
                p_event_id, dead.generation, p_new_generation
                using errcode = 'OR006', hint = 'Leave out p_new_generation.';
        end if;
        perform from /*schema*/cursor as c
        where c.subscription = dead.subscription and c.generation = dead.generation and c.partition = dead.partition
        for update;
        -- Again under the lock: somebody else may have replayed it meanwhile.
        select d.* into dead from /*schema*/delivery as d where d.id = dead.id and d.status = 'failed';
        continue when dead.id is null;
        found := true;
        subscription := dead.subscription;
        told := told || dead.subscription;
        if exists (select from /*schema*/outbox as o join /*schema*/event_handled as h
                       on h.handler_name = dead.subscription
                      and h.idempotency_key = coalesce(o.event_type || ':' || o.idempotency_key, o.id::text)
                   where o.seq = dead.seq) then
            outcome := 'skipped_handled';
            return next;
            continue;
        end if;
        update /*schema*/delivery as d
        set status = 'pending', head = d.ordering_key is null, attempts = 0, crashes = 0, suspect = false,
            cycle = d.cycle + 1, run_at = now(),
            failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                    else d.failure_history end) || jsonb_build_object(
                'cycle', d.cycle, 'replayed_at', clock_timestamp(), 'by', coalesce(p_replayed_by, session_user))
        where d.id = dead.id;
        perform /*schema*/promote(dead.subscription, array[dead.ordering_key]);
        perform pg_notify(
            case dead.generation when 0 then 'outbox_default' else 'outbox_gen_' || dead.generation end, dead.event_type);
        outcome := 'replayed';
        return next;
    end loop;
    for subscription in
        select s.name from /*schema*/subscription as s
        join /*schema*/outbox as o on o.id = p_event_id
        join /*schema*/event_handled as h
            on h.handler_name = s.name
           and h.idempotency_key = coalesce(o.event_type || ':' || o.idempotency_key, o.id::text)
        where s.name = coalesce(p_subscription, s.name) and not s.name = any (told)
        order by s.name
    loop
        found := true;
        outcome := 'skipped_handled';
        return next;
    end loop;
    if not found then
        subscription := p_subscription;
        outcome := 'not_found';
        return next;
    end if;
end
$$;
