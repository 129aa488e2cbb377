-- outbox_replay: replay the dead letters of one event, of one subscription or of all. See replay.
--
-- p_force: also where the event was handled, which gets a new delivery or job: name the subscription. For operators only (operates).
-- Returns one row per subscription: replayed; skipped_handled (its idempotency key has a receipt, so there is nothing to do); erased
--         (its payload is gone); not_found (neither a dead letter nor handled there, or anywhere if none is named).
create or replace function /*schema*/outbox_replay(
    p_event_id uuid, p_new_generation bigint default null, p_replayed_by text default null,
    p_subscription text default null, p_force boolean default false, p_payload jsonb default null,
    p_reason text default null
) returns table (subscription text, outcome text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '10s'
as $$
#variable_conflict use_column
declare
    names    text[];
    outcomes text[];
begin
    perform /*schema*/sees_all(true);
    if p_force and p_subscription is null then
        raise 'to replay an event that was handled, name the subscription' using errcode = 'OR006';
    end if;
    if exists (select from /*schema*/outbox as o where o.id = p_event_id and o.erased_at is not null) then
        subscription := p_subscription;
        outcome := 'erased';
        return next;
        return;
    end if;
    if p_force then
        perform from /*schema*/cursor as c where c.subscription = p_subscription
        order by c.generation, c.partition for update;
        with handled as materialized (
            select s.name, s.kind, s.ordering, place.generation, place.partition, o.seq, o.id, o.event_type, o.workspace_id,
                   o.aggregate_id, h.failure_history
            from /*schema*/outbox as o
            join /*schema*/subscription as s on s.name = p_subscription
            join /*schema*/event_handled as h
                on h.handler_name = s.name
               and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
            cross join lateral (
                select c.generation, c.partition from /*schema*/cursor as c
                where c.subscription = s.name and c.generation in (0, o.generation)
                  and c.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (s.partitions - 1)
                order by c.generation desc limit 1) as place
            where o.id = p_event_id
        ),
        job as (
            insert into /*schema*/job (
                subscription, generation, seq, event_id, event_type, status, run_at, failure_history, queue, job_key, workspace_id)
            select h.name, h.generation, h.seq, h.id, h.event_type, 'discarded', now(), h.failure_history, 'default',
                   h.aggregate_id, h.workspace_id
            from handled as h where h.kind = 'job'
            on conflict (subscription, seq) where seq is not null do nothing
        )
        insert into /*schema*/delivery (
            subscription, generation, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at,
            failure_history, workspace_id)
        select h.name, h.generation, h.partition, h.seq, h.id, h.event_type,
               /*schema*/ordering_key(h.ordering, h.workspace_id, h.aggregate_id), 'discarded', false, true, now(),
               coalesce(h.failure_history, '[]'), h.workspace_id
        from handled as h where h.kind = 'handler'
        on conflict (subscription, seq) do nothing;
    end if;
    -- What is gone once we hold the lock was handled meanwhile, and its receipt is found below.
    select array_agg(replayed.subscription), array_agg(replayed.outcome) into names, outcomes
    from /*schema*/replay(
        array(select d.id from /*schema*/owed as d
              where d.id = any (/*schema*/owed_of(p_event_id)) and d.subscription = coalesce(p_subscription, d.subscription)
                and (d.status = 'failed' or (p_force and d.status = 'discarded'))
              order by d.subscription, d.seq),
        p_replayed_by, p_new_generation, p_force, p_payload, p_reason) as replayed
    where replayed.subscription is not null;
    return query
    with found as materialized (
        select told.subscription, told.outcome from unnest(names, outcomes) as told (subscription, outcome)
    ),
    handled as materialized (
        select distinct s.name as subscription, 'skipped_handled' as outcome
        from /*schema*/subscription as s
        join /*schema*/outbox as o on o.id = p_event_id
        join /*schema*/event_handled as h
            on h.handler_name = s.name
           and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
        where s.name = coalesce(p_subscription, s.name) and s.kind <> 'inbox'
          and not exists (select from found where found.subscription = s.name)
    )
    select found.subscription, found.outcome from found
    union all
    select handled.subscription, handled.outcome from handled
    union all
    select p_subscription, 'not_found' where not exists (select from found) and not exists (select from handled)
    order by 1;
end
$$;
