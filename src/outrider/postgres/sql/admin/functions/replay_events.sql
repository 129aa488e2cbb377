-- replay_events: of these ids, make the deliveries pending again. Returns their ids. p_mark goes to their failure histories.
-- The caller is replay, which has locked the deliveries and their cursors.
create or replace function /*schema*/replay_events(p_deliveries bigint[], p_new_generation bigint, p_payload jsonb, p_mark jsonb)
    returns bigint[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    revived bigint[];
begin
    with back as (
        update /*schema*/delivery as d
        set status = 'pending', head = d.ordering_key is null, attempts = 0, crashes = 0, suspect = false, cycle = d.cycle + 1,
            run_at = now(), buried_at = null, payload = coalesce(p_payload, d.payload),
            generation = coalesce(p_new_generation, d.generation),
            -- Its cursor will not read the event again, so it need not wait for the cursor.
            reached = d.reached or coalesce(p_new_generation <> d.generation, false) or not exists (
                select from /*schema*/subscription as s where s.name = d.subscription
                   and (s.event_types is null or d.event_type = any (s.event_types))),
            failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                    else d.failure_history end) || (jsonb_build_object('cycle', d.cycle) || p_mark)
        where d.id = any (p_deliveries)
        returning d.id
    )
    select coalesce(array_agg(back.id), '{}') into revived from back;
    perform /*schema*/promote(line.subscription, line.generation, line.keys)
    from (select d.subscription, d.generation, array_agg(distinct d.ordering_key) as keys from /*schema*/delivery as d
          where d.id = any (revived) and d.ordering_key is not null
          group by d.subscription, d.generation) as line;
    return revived;
end
$$;
