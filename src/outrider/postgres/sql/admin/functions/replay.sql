-- replay: make dead letters pending again, due now, with all their attempts. Later events of their keys may have been handled.
-- The failure history stays and gets a marker; the next attempts are a new cycle.
--
-- p_deliveries: ids of deliveries and of jobs.
-- p_new_generation: the generation whose workers handle them; of events it must have cursors, or be 0.
-- p_force: also dead letters that were handled, whose receipt moves to the audit, and discarded ones.
-- p_payload: handlers get this instead of the event's payload, which stays in the log.
-- p_force and p_payload are for operators only (operates), because they change receipts and payloads; each row is audited. Otherwise
-- one audit entry has the counts, if any was replayed.
-- Locks:  the cursor rows of the partitions, waiting up to 10 s: nobody may take the events while they change. Then the dead letters.
-- Returns one row for each: replayed; skipped_handled (its idempotency key has a receipt, so there is nothing to do); not_found (no
--         longer a dead letter); superseded (a job whose unique key another job has, or an open
--         transaction is enqueuing); erased (its payload is gone).
create or replace function /*schema*/replay(
    p_deliveries bigint[], p_replayed_by text default null, p_new_generation bigint default null,
    p_force boolean default false, p_payload jsonb default null, p_reason text default null
) returns table (delivery bigint, event_id uuid, subscription text, outcome text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '10s'         -- because it holds the first partitions while it waits for the last
as $$
#variable_conflict use_column
declare
    who      constant text := /*schema*/signed(p_replayed_by);
    allowed  constant bigint := (select s.value from /*schema*/setting as s where s.name = 'payload_max_bytes');
    mark     constant jsonb := jsonb_strip_nulls(jsonb_build_object(
        'replayed_at', clock_timestamp(), 'by', who, 'forced', nullif(p_force, false),
        'edited', nullif(p_payload is not null, false), 'generation', p_new_generation));
    reason   constant jsonb := jsonb_strip_nulls(jsonb_build_object('reason', left(p_reason, 2000)));
    outcomes text[];
    dead     bigint[];
    revived  bigint[];
begin
    perform /*schema*/sees_all(true);
    if (p_force or p_payload is not null) and not /*schema*/operates() then
        raise 'only an operator may replay with force or with another payload'
            using errcode = '42501', hint = 'An operator is a role that may execute withdraw.';
    end if;
    if p_payload is not null and (jsonb_typeof(p_payload) <> 'object' or (octet_length(nullif(/*schema*/as_text(p_payload), '')) <= allowed) is not true) then
        raise 'the new payload must be a JSON object of at most % bytes', allowed using errcode = 'OR006';
    end if;
    perform /*schema*/hold_partitions(p_deliveries, p_new_generation);
    perform from /*schema*/delivery as d
    where d.id = any (p_deliveries) and d.status in ('failed', 'discarded') order by d.id for update;
    perform from /*schema*/job as j
    where j.id = any (p_deliveries) and j.status in ('failed', 'discarded') order by j.id for update;

    -- In the order of p_deliveries; null = it can be replayed.
    outcomes := array(
        select case when d.last_error_code = '(erased)' or o.erased_at is not null then 'erased'
                    when d.status in ('failed', 'discarded') and h.event_id is not null and p_force is not true then 'skipped_handled'
                    when d.status = 'failed' or d.status = 'discarded' and p_force then null
                    else 'not_found' end
        from unnest(p_deliveries) with ordinality as asked (id, place)
        left join lateral (select d.* from /*schema*/owed as d where d.id = asked.id limit 1) as d on true
        left join lateral (select o.* from /*schema*/outbox as o where o.seq = d.seq limit 1) as o on true
        left join /*schema*/event_handled as h
            on h.handler_name = d.subscription
           and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
        order by asked.place);
    dead := array(select told.id from unnest(p_deliveries, outcomes) as told (id, outcome) where told.outcome is null);
    if p_force then
        perform /*schema*/forget_receipts(dead, who, p_reason);
    end if;
    revived := /*schema*/replay_events(dead, p_new_generation, p_payload, mark)
               || /*schema*/replay_jobs(dead, p_new_generation, p_payload, mark, reason);

    if p_payload is not null then
        insert into /*schema*/audit (by, action, subscription, event_id, details)
        select who, 'edit', d.subscription, d.event_id, jsonb_build_object('payload', p_payload) || reason
        from /*schema*/owed as d where d.id = any (revived) and d.seq is not null;
    elsif revived <> '{}' and p_force is not true then
        -- Name the subscription, or the event, if it is only one.
        perform /*schema*/note(
            'replay', p_replayed_by, p_reason,
            case when min(d.subscription) = max(d.subscription) then min(d.subscription) end,
            case when min(d.event_id::text) = max(d.event_id::text) then min(d.event_id::text) end::uuid,
            jsonb_strip_nulls(jsonb_build_object(
                'replayed', cardinality(revived),
                'skipped_handled', nullif(cardinality(array_positions(outcomes, 'skipped_handled')), 0),
                'superseded', nullif(cardinality(dead) - cardinality(revived), 0), 'generation', p_new_generation)))
        from /*schema*/owed as d where d.id = any (revived);
    end if;
    perform /*schema*/notify(waiting.channel, waiting.type)
    from (select distinct /*schema*/generation_channel(d.generation) as channel,
                          case d.kind when 'job' then d.subscription else d.event_type end as type
          from /*schema*/owed as d where d.id = any (revived)) as waiting;
    return query
    select asked.id, d.event_id, d.subscription,
           case when asked.id = any (revived) then 'replayed' else coalesce(asked.outcome, 'superseded') end
    from unnest(p_deliveries, outcomes) with ordinality as asked (id, outcome, place)
    left join lateral (select d.* from /*schema*/owed as d where d.id = asked.id limit 1) as d on true
    order by asked.place;
end
$$;
