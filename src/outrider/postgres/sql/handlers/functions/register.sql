-- register: declare a subscription and create its cursors. It only adds, so it may run at every deploy.
--
-- Use:    as the first statement of a READ COMMITTED transaction: making a cursor is a take that returns nothing.
-- Locks:  the subscription row; also its cursor rows, waiting for their readers, if the partitions double or the order changes.
-- Start:  only of a new subscription. 'now': events that are not visible yet. 'beginning': all events in the log. A time: from the
--         first event with occurred_at at or after it, and all events that are not visible yet. The search for that event skips
--         segments that were full an hour before the time; an hour, because clocks differ. An event dated into the future may make
--         the start earlier than needed, never later. A start in the future is refused.
-- Known subscription: new event types are added. Partitions grow by doubling: each cursor is copied, the copies share its keys, and
--         parked events move with their keys. Fewer types or partitions than the table has change nothing. The order is set to what
--         is declared, also for events in delivery. order = total is refused if there are several partitions.
-- Returns created, extended or unchanged, and the number of partitions in force.
create or replace function /*schema*/register(
    p_name text, p_kind text, p_context text, p_event_types text[], p_partitions integer default 1,
    p_start text default 'now', p_ordering text default 'key',
    out outcome text, out partitions integer
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
as $$
declare
    q        bigint;
    r        xid8;
    full_seq bigint;
    sub      /*schema*/subscription;
begin
    perform /*schema*/sees_all();
    if current_setting('transaction_isolation') <> 'read committed'
       or pg_current_xact_id_if_assigned() is not null then
        raise 'register must be the first statement of a READ COMMITTED transaction' using errcode = 'OR001';
    end if;
    if (select s.seqcache from pg_sequence as s where s.seqrelid = '/*schema*/outbox_seq'::regclass) <> 1 then
        raise 'the sequence of the log must have CACHE 1: with more, cursors would skip events'
            using errcode = 'OR003', hint = 'alter sequence /*schema*/outbox_seq cache 1';
    end if;

    q := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);

    insert into /*schema*/subscription (name, kind, context, event_types, partitions, ordering)
    values (p_name, p_kind, p_context, p_event_types, p_partitions, p_ordering)
    on conflict (name) do nothing;

    if found and p_event_types = '{}' then  -- a job that is only enqueued reads nothing
        outcome := 'created';
        partitions := p_partitions;
        return;
    end if;
    if found and p_start not in ('now', 'beginning') and p_start::timestamptz > clock_timestamp() + interval '1 minute' then
        raise 'subscription "%" cannot start at %, which is in the future', p_name, p_start::timestamptz
            using errcode = 'OR002', hint = 'Leave out start= and deploy it at that time; or start now, and skip earlier events in the handler.';
    end if;
    if found then
        r := pg_current_xact_id();
        if p_start not in ('now', 'beginning') then
            full_seq := coalesce((select max(s.last_seq) from /*schema*/segment as s
                                  where s.closed_at < p_start::timestamptz - interval '1 hour'), 0);
        end if;
        with snapshot as materialized (
            select pg_current_snapshot() as now, /*schema*/foreign_floor(pg_current_snapshot()) as foreign_floor
        )
        insert into /*schema*/cursor (
            subscription, partition, seq, floor, inflight, horizon, mark_seq, mark_xid, cluster)
        select p_name, n,
               case p_start
                   when 'now' then q
                   when 'beginning' then 0
                   else coalesce((select min(o.seq) - 1 from /*schema*/outbox as o
                                  where o.seq > full_seq and o.seq <= q and o.occurred_at >= p_start::timestamptz), q)
               end,
               snapshot.foreign_floor, snapshot.now, r, q, r, (select /*schema*/log_home())
        from snapshot, generate_series(0, p_partitions - 1) as n;
        outcome := 'created';
        partitions := p_partitions;
        return;
    end if;

    -- Not FOR UPDATE: a worker that parks, holding its cursor, checks the foreign key to this row.
    select s.* into sub from /*schema*/subscription as s where s.name = p_name for no key update;
    if sub.kind <> p_kind or sub.context <> p_context then
        raise 'subscription "%" is registered as a % of context "%", not as a % of context "%"',
            p_name, sub.kind, sub.context, p_kind, p_context
            using errcode = 'OR002', hint = 'Give the new one another name.';
    end if;

    if (sub.event_types = '{}') is distinct from (p_event_types = '{}') then
        raise 'the job "%" is registered as % and cannot become %', p_name,
            case when sub.event_types = '{}' then 'enqueued' else 'made of events' end,
            case when sub.event_types = '{}' then 'made of events' else 'enqueued' end
            using errcode = 'OR002', hint = 'Give the new one another name.';
    end if;

    outcome := 'unchanged';
    if sub.event_types is not null and (p_event_types is null or not sub.event_types @> p_event_types) then
        update /*schema*/subscription as s
        set event_types = case when p_event_types is not null then
            array(select distinct t from unnest(sub.event_types || p_event_types) as t order by t) end
        where s.name = p_name;
        outcome := 'extended';
    end if;

    if p_ordering = 'total' and sub.partitions > 1 then
        raise 'subscription "%" has % partitions, and order="total" needs one', p_name, sub.partitions
            using errcode = 'OR002', hint = 'Partitions do not shrink: give the new one another name.';
    end if;
    if sub.ordering <> p_ordering or sub.partitions < p_partitions then
        perform from /*schema*/cursor as c where c.subscription = p_name order by generation, partition for update;
    end if;

    if sub.ordering <> p_ordering then
        update /*schema*/subscription as s set ordering = p_ordering where s.name = p_name;
        -- Under the cursors' locks, because a take in progress parks by the order that it has read. Heads in a second step,
        -- because a key must never have two.
        update /*schema*/delivery as d
        set ordering_key = lined.line, head = lined.line is null and d.status = 'pending'
        from (select d.id, /*schema*/ordering_key(p_ordering, o.workspace_id, o.aggregate_id) as line
              from /*schema*/delivery as d
              left join lateral (select o.* from /*schema*/outbox as o where o.seq = d.seq limit 1) as o on true
              where d.subscription = p_name) as lined
        where d.id = lined.id;
        update /*schema*/delivery as d set head = true
        from (select d.generation, d.ordering_key, min(d.seq) as seq from /*schema*/delivery as d
              where d.subscription = p_name and d.status = 'pending' and d.ordering_key is not null
              group by d.generation, d.ordering_key) as first
        where d.subscription = p_name and d.seq = first.seq;
        outcome := 'extended';
    end if;

    partitions := sub.partitions;
    if partitions < p_partitions then
        while partitions < p_partitions loop
            insert into /*schema*/cursor (
                subscription, generation, partition,
                seq, floor, inflight, horizon, owing, owed_after, mark_seq, mark_xid, cluster, served_by)
            select c.subscription, c.generation, c.partition + register.partitions,
                   c.seq, c.floor, c.inflight, c.horizon, c.owing, c.owed_after, c.mark_seq, c.mark_xid, c.cluster,
                   c.served_by
            from /*schema*/cursor as c where c.subscription = p_name;
            partitions := partitions * 2;
        end loop;
        update /*schema*/subscription as s set partitions = register.partitions where s.name = p_name;
        update /*schema*/delivery as d
        set partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (register.partitions - 1)
        from /*schema*/outbox as o where d.subscription = p_name and o.seq = d.seq;
        outcome := 'extended';
    end if;
end
$$;
