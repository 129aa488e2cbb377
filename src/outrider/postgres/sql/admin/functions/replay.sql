-- replay: make dead letters pending again, due now, with all their attempts. Later events of their keys may have been handled.
-- The failure history stays and gets a marker; the next attempts are a new cycle.
--
-- p_new_generation: the generation whose workers handle them; it must have cursors, or be 0.
-- p_force: also dead letters that were handled, whose receipt moves to the audit, and discarded ones.
-- p_payload: handlers get this instead of the event's payload, which stays in the log.
-- p_force and p_payload are for operators only (operates), because they change receipts and payloads; each row is audited. Otherwise
-- one audit entry has the counts, if any was replayed.
-- Locks:  the cursor rows of the partitions, waiting up to 10 s: nobody may take the events while they change.
-- Returns one row for each: replayed; skipped_handled (its idempotency key has a receipt, so there is nothing to do); not_found (no
--         longer a dead letter); superseded (a job whose unique key another pending job has); erased (its payload is gone).
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
    replayer  text := /*schema*/signed(p_replayed_by);
    why       text := left(p_reason, 2000);
    allowed   bigint := (select s.value from /*schema*/setting as s where s.name = 'payload_max_bytes');
    wrong     record;
    places    bigint[];
    held      bigint[] := '{}';
    handled   bigint[];
    superseded bigint[];
    revived   bigint[];
    erased    bigint[];
    violated  text;
    reasoned  jsonb := case when p_reason is null then '{}' else jsonb_build_object('reason', left(p_reason, 2000)) end;
begin
    perform /*schema*/sees_all(true);
    if (p_force or p_payload is not null) and not /*schema*/operates() then
        raise 'only an operator may replay with force or with another payload'
            using errcode = '42501', hint = 'An operator is a role that may execute withdraw.';
    end if;
    if p_payload is not null and (jsonb_typeof(p_payload) <> 'object' or (octet_length(nullif(/*schema*/as_text(p_payload), '')) <= allowed) is not true) then
        raise 'the new payload must be a JSON object of at most % bytes', allowed using errcode = 'OR006';
    end if;
    -- Again after the wait: partitions may have doubled, or a generation was opened or folded.
    loop
        places := array(
            select distinct c.id from /*schema*/delivery as d join /*schema*/cursor as c
                on c.subscription = d.subscription and c.partition = d.partition
               and c.generation in (d.generation, coalesce(p_new_generation, d.generation))
            where d.id = any (p_deliveries) and d.queue is null);
        exit when places <@ held;
        held := array(select locked.id from (
            select c.id from /*schema*/cursor as c where c.id = any (places)
            order by c.subscription, c.generation, c.partition for update) as locked);
    end loop;
    -- Under the lock, so that the generation stays.
    select d.subscription into wrong from /*schema*/delivery as d
    where d.id = any (p_deliveries) and p_new_generation is not null and d.queue is null
      and not exists (select from /*schema*/cursor as c
                      where c.subscription = d.subscription and c.generation = p_new_generation);
    if found then
        raise 'no worker of generation % has started for "%"', p_new_generation, wrong.subscription
            using errcode = 'OR006', hint = format('Its generations are %s. Start workers of that generation, or leave it out.', (
                select string_agg(distinct c.generation::text, ', ') from /*schema*/cursor as c
                where c.subscription = wrong.subscription));
    end if;

    erased := array(
        select d.id from /*schema*/delivery as d
        where d.id = any (p_deliveries) and (d.last_error_code = '(erased)' or exists (
            select from /*schema*/outbox as o where o.seq = d.seq and o.erased_at is not null)));
    p_deliveries := array(select asked.id from unnest(p_deliveries) as asked (id) where asked.id <> all (erased));
    handled := array(
        select d.id from /*schema*/delivery as d join /*schema*/outbox as o on o.seq = d.seq
        join /*schema*/event_handled as h
            on h.handler_name = d.subscription
           and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
        where d.id = any (p_deliveries) and d.status in ('failed', 'discarded'));
    if p_force then
        with gone as (
            delete from /*schema*/event_handled as h using /*schema*/delivery as d, /*schema*/outbox as o
            where d.id = any (handled) and o.seq = d.seq and h.handler_name = d.subscription
              and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
            returning d.id, to_jsonb(h) as receipt
        )
        insert into /*schema*/audit (by, action, subscription, event_id, details)
        select replayer, 'force_replay', d.subscription, d.event_id, jsonb_strip_nulls(jsonb_build_object(
            'reason', why, 'receipt', gone.receipt, 'discarded', nullif(gone.receipt is null and d.status = 'discarded', false)))
        from /*schema*/delivery as d left join gone on gone.id = d.id
        where d.id = any (p_deliveries) and d.status in ('failed', 'discarded');
        handled := '{}';
    end if;

    loop
        -- Of the jobs with the same unique key only the newest is pending, or becomes so.
        superseded := array(
            select d.id from /*schema*/delivery as d
            where d.id = any (p_deliveries) and (d.status = 'failed' or (p_force and d.status = 'discarded'))
              and d.id <> all (handled) and d.unique_key is not null and exists (
                select from /*schema*/delivery as other
                where other.subscription = d.subscription and other.unique_key = d.unique_key and other.id <> d.id
                  and coalesce(other.workspace_id, '') = coalesce(d.workspace_id, '')
                  and num_nonnulls(other.seq) = num_nonnulls(d.seq)
                  and (other.status = 'pending' or other.status = 'in_flight' and d.seq is not null
                       or other.id > d.id and other.id = any (p_deliveries) and other.id <> all (handled)
                          and (other.status = 'failed' or (p_force and other.status = 'discarded')))));
        begin
            if p_payload is not null then
                insert into /*schema*/audit (by, action, subscription, event_id, details)
                select replayer, 'edit', d.subscription, d.event_id,
                       -- Whose job it was: when it is done, erase finds that nowhere else.
                       jsonb_build_object('payload', p_payload, 'before', d.payload, 'workspace', d.workspace_id,
                                          'job', coalesce(d.job_key, '')) || reasoned
                from /*schema*/delivery as d
                where d.id = any (p_deliveries) and (d.status = 'failed' or (p_force and d.status = 'discarded'))
                  and d.id <> all (handled) and d.id <> all (superseded) and d.queue is not null and d.seq is null;
            end if;
            with back as (
                update /*schema*/delivery as d
                set status = 'pending', head = d.ordering_key is null and d.queue is null, attempts = 0, crashes = 0,
                    suspect = false, cycle = d.cycle + 1, run_at = now(), buried_at = null,
                    payload = coalesce(p_payload, d.payload), generation = coalesce(p_new_generation, d.generation),
                    -- Its cursor will not read the event again, so it need not wait for the cursor.
                    reached = d.reached or coalesce(p_new_generation <> d.generation, false) or not exists (
                        select from /*schema*/subscription as s where s.name = d.subscription
                           and (s.event_types is null or d.event_type = any (s.event_types))),
                    failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                            else d.failure_history end) || jsonb_strip_nulls(jsonb_build_object(
                        'cycle', d.cycle, 'replayed_at', clock_timestamp(), 'by', replayer,
                        'forced', nullif(p_force, false), 'edited', nullif(p_payload is not null, false),
                        'generation', p_new_generation))
                where d.id = any (p_deliveries) and (d.status = 'failed' or (p_force and d.status = 'discarded'))
                  and d.id <> all (handled) and d.id <> all (superseded)
                returning d.id
            )
            select array_agg(back.id) into revived from back;
            exit;
        exception when unique_violation then
            get stacked diagnostics violated = constraint_name;
            if violated not in ('job_unique', 'job_once') then
                raise;
            end if;
            -- A job with the unique key was enqueued meanwhile: look again.
        end;
    end loop;
    if p_payload is not null then
        insert into /*schema*/audit (by, action, subscription, event_id, details)
        select replayer, 'edit', d.subscription, d.event_id, jsonb_build_object('payload', p_payload) || reasoned
        from /*schema*/delivery as d where d.id = any (revived) and d.seq is not null;
    end if;
    if revived is not null and p_force is not true and p_payload is null then
        -- Name the subscription, or the event, if it is only one.
        perform /*schema*/note(
            'replay', p_replayed_by, p_reason,
            case when min(d.subscription) = max(d.subscription) then min(d.subscription) end,
            case when min(d.event_id::text) = max(d.event_id::text) then min(d.event_id::text) end::uuid,
            jsonb_strip_nulls(jsonb_build_object(
                'replayed', cardinality(revived), 'skipped_handled', nullif(cardinality(handled), 0),
                'superseded', nullif(cardinality(superseded), 0), 'generation', p_new_generation)))
        from /*schema*/delivery as d where d.id = any (revived);
    end if;
    perform /*schema*/promote(line.subscription, line.generation, line.keys)
    from (select d.subscription, d.generation, array_agg(distinct d.ordering_key) as keys from /*schema*/delivery as d
          where d.id = any (revived) and d.ordering_key is not null
          group by d.subscription, d.generation) as line;
    perform /*schema*/notify(poke.channel, poke.event_type)
    from (select distinct case when d.queue is null then d.event_type else d.subscription end as event_type,
                          /*schema*/generation_channel(d.generation) as channel
          from /*schema*/delivery as d where d.id = any (revived)) as poke;
    return query
    select asked.id, d.event_id, d.subscription,
           case when asked.id = any (revived) then 'replayed'
                when asked.id = any (handled) then 'skipped_handled'
                when asked.id = any (superseded) then 'superseded'
                when asked.id = any (erased) then 'erased' else 'not_found' end
    from unnest(p_deliveries || erased) with ordinality as asked (id, place)
    left join /*schema*/delivery as d on d.id = asked.id
    order by asked.place;
end
$$;
