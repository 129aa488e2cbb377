-- take_parked: the parked events of a partition that are due, with those that wait behind them, in their order.
-- The caller is take, which holds the cursor's lock: nobody else changes the parked events of the partition.
-- Reads and writes: delivery by due time and by ordering key, outbox by seq, receipts; the counter of the cursor.
-- Returns no rows if nothing is due. Otherwise a first row without an event, then events, as take does.
--
-- A suspect (an event of a batch whose worker died three times) runs alone. It is counted and committed before it runs (outcome
-- armed), and belongs to its worker for 30 s. If the worker dies, the suspect becomes due and is counted again. After the third
-- time it becomes a dead letter.
create or replace function /*schema*/take_parked(
    p_subscription text, p_cursor /*schema*/cursor, p_limit integer, p_armed bigint, p_suspicious boolean,
    p_excused bigint, p_head /*schema*/taken, p_worker text, p_alone boolean
) returns setof /*schema*/taken
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set jit = off
as $$
#variable_conflict use_column
declare
    head   /*schema*/taken := p_head;
    first  /*schema*/delivery;
    chosen bigint[];
    lost   bigint;
    lines  text[];
    fits   integer;
begin
    perform /*schema*/sees_all();
    head.outcome := 'more';
    head.duplicates := 0;

    if p_suspicious then
        update /*schema*/delivery as d set suspect = true
        from (select h.id, h.ordering_key from /*schema*/delivery as h
              where h.subscription = p_subscription and h.generation = p_cursor.generation
                and h.partition = p_cursor.partition and h.status = 'pending' and h.head and h.reached
                and h.run_at <= now()) as due
        where d.subscription = p_subscription and d.generation = p_cursor.generation and d.status = 'pending'
          and (d.id = due.id or d.ordering_key = due.ordering_key);
        return;
    end if;

    if p_armed is not null then
        select d.* into first from /*schema*/delivery as d
        where d.id = p_armed and d.subscription = p_subscription and d.status = 'pending' and d.head
          and d.generation = p_cursor.generation and d.partition = p_cursor.partition;
    else
        select d.* into first from /*schema*/delivery as d
        where d.subscription = p_subscription and d.generation = p_cursor.generation and d.partition = p_cursor.partition
          and d.status = 'pending' and d.head and d.reached and d.run_at <= now()
        order by d.run_at limit 1;
    end if;
    if first.id is null then
        return;
    end if;

    if first.suspect and first.id is distinct from p_armed then
        if not p_alone then
            head.outcome := 'suspect';
        elsif first.crashes >= 3 then
            perform /*schema*/bury(first.id, 'worker_crash',
                'the worker died each time it ran this event: ' || first.crashes || ' times alone', p_worker);
        else
            update /*schema*/delivery as d set crashes = d.crashes + 1, run_at = now() + interval '30 seconds'
            where d.id = first.id;
            head.outcome := 'armed';
            head.delivery := first.id;
        end if;
        update /*schema*/cursor as c set takes = head.batch, excused = p_excused where c.id = p_cursor.id;
        return next head;
        return;
    end if;

    if first.id = p_armed then
        chosen := array[first.id];
    else
        chosen := array(
            select one.id
            from (select h.id, h.ordering_key, row_number() over (order by h.run_at, h.id) as place
                  from /*schema*/delivery as h
                  where h.subscription = p_subscription and h.generation = p_cursor.generation and h.partition = p_cursor.partition
                    and h.status = 'pending' and h.head and h.reached and not h.suspect and h.run_at <= now()
                  order by h.run_at, h.id limit p_limit) as h
            cross join lateral (
                select h.id, 0::bigint as seq
                union all
                (select f.id, f.seq
                 from (select f.id, f.seq,
                              bool_or(f.suspect or not f.reached or f.run_at > now()) over (order by f.seq) as stopped
                       from (select f.* from /*schema*/delivery as f
                             where f.subscription = p_subscription and f.generation = p_cursor.generation
                               and f.ordering_key = h.ordering_key and f.status = 'pending' and not f.head
                             order by f.seq limit p_limit) as f) as f
                 where not f.stopped)
            ) as one
            order by h.place, one.seq limit p_limit);
        fits := /*schema*/fitting($payloads$
            select coalesce(d.payload, o.payload)
            from unnest($1) with ordinality as c (id, place)
            join /*schema*/delivery as d on d.id = c.id
            left join lateral (select o.payload from /*schema*/outbox as o where o.seq = d.seq limit 1) as o on true
            order by c.place$payloads$, chosen);
        if fits is not null then
            chosen := chosen[1 : fits];
        end if;
    end if;

    lines := array(select distinct d.ordering_key from /*schema*/delivery as d
                   where d.id = any (chosen) and d.ordering_key is not null);
    for lost in
        select d.id from /*schema*/delivery as d
        where d.id = any (chosen) and not exists (select from /*schema*/outbox as o where o.seq = d.seq)
    loop
        perform /*schema*/bury(lost, 'event_missing', 'its event is not in the log: somebody has removed it', p_worker);
        chosen := array_remove(chosen, lost);
    end loop;
    if p_cursor.open_until is not null then
        head.outcome := 'probe';
    end if;
    update /*schema*/cursor as c set takes = head.batch, excused = p_excused, failures = 0, open_until = null
    where c.id = p_cursor.id;

    return query
    with gone as (
        delete from /*schema*/delivery as d where d.id = any (chosen)
        returning d.id, d.seq, d.attempts, d.ordering_key, d.payload, nullif(d.failure_history, '[]') as failure_history
    ),
    batch as materialized (
        select array_position(chosen, gone.id) as place, gone.attempts + 1 as attempt, gone.payload as edited,
               gone.failure_history, o.*
        from gone cross join lateral (select o.* from /*schema*/outbox as o where o.seq = gone.seq limit 1) as o
    ),
    receipts as (
        insert into /*schema*/event_handled (
            handler_name, idempotency_key, event_id, seq, generation, content_class, failure_history, workspace_id)
        select p_subscription, winner.key, winner.id, winner.seq, winner.generation, winner.content_class,
               winner.failure_history, case when winner.failure_history is not null then winner.workspace_id end
        from (select /*schema*/receipt_key(batch.workspace_id, batch.event_type, batch.idempotency_key, batch.id)
                         collate "C" as key, batch.*
              from batch) as winner
        where not exists (select from /*schema*/event_handled as h  -- as in take
                          where h.handler_name = p_subscription and h.idempotency_key = winner.key)
        order by winner.key, winner.place
        on conflict do nothing
        returning seq
    )
    select * from jsonb_populate_record(head, jsonb_build_object(
        'duplicates', (select count(*) from batch) - (select count(*) from receipts)))
    union all
    (select null, null, null, null, null, null, null,
            b.attempt, b.seq, b.id, b.event_type, b.event_version, b.occurred_at, b.source, b.target, b.content_class,
            b.channel, b.generation, b.workspace_id, b.aggregate_kind, b.aggregate_id, b.entity_version,
            /*schema*/as_text(coalesce(b.edited, b.payload)), coalesce(b.idempotency_key, b.id::text),
            nullif(/*schema*/as_text(b.trace_context), ''), b.origin
     from batch as b
     where b.seq in (select receipts.seq from receipts)
     order by b.place);

    perform /*schema*/promote(p_subscription, p_cursor.generation, lines);
end
$$;
