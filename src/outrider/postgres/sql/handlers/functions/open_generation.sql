-- open_generation: give a generation its own cursors of a subscription, copied from those of generation 0, with its parked events.
-- From then on the cursors of generation 0 skip its events. Returns whether the cursors are new.
--
-- Use:    when a worker of the generation starts. Runs as the owner, because a cursor brings its counters. Only handlers have
--         generations; false for other subscriptions.
-- Bound:  64 open generations of a subscription: each adds a cursor row and two sequences per partition. Generation 0 reads the
--         events of a generation without cursors.
-- Locks:  the subscription row, then its cursors of generation 0, waiting up to 5 s for the batches in progress: a worker that is
--         frozen in its batch must not keep new workers from serving their other subscriptions.
-- Why it is exact: a cursor says what was read of the whole log, whatever it wanted. A copy made under its lock continues from
-- there, and every take asks, after it has the lock, which generations have cursors of their own.
create or replace function /*schema*/open_generation(p_subscription text, p_generation bigint) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '5s'
as $$
declare
    lines text[];
begin
    perform /*schema*/sees_all(true);
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'open_generation needs a READ COMMITTED transaction' using errcode = 'OR001';
    end if;
    if p_generation <= 0 or exists (select from /*schema*/cursor as c
                                    where c.subscription = p_subscription and c.generation = p_generation) then
        return false;
    end if;
    perform from /*schema*/subscription as s where s.name = p_subscription and s.kind = 'handler' for no key update;
    if not found then
        return false;
    end if;
    if 64 <= (select count(distinct c.generation) from /*schema*/cursor as c
              where c.subscription = p_subscription and c.generation <> 0) then
        raise '% has 64 open generations, and % would be one more', p_subscription, p_generation
            using errcode = 'OR011', hint = 'Generations without workers are folded once they are read to the end: outrider generations';
    end if;
    perform from /*schema*/cursor as c where c.subscription = p_subscription and c.generation = 0
    order by c.partition for update;
    insert into /*schema*/cursor (
        subscription, generation, partition,
        seq, floor, inflight, horizon, owing, owed_after, mark_seq, mark_xid, cluster)
    select c.subscription, p_generation, c.partition,
           c.seq, c.floor, c.inflight, c.horizon, c.owing, c.owed_after, c.mark_seq, c.mark_xid, c.cluster
    from /*schema*/cursor as c where c.subscription = p_subscription and c.generation = 0
    on conflict do nothing;
    if not found then
        return false;
    end if;
    with moved as (
        update /*schema*/delivery as d set generation = p_generation, head = d.ordering_key is null and d.head
        from /*schema*/outbox as o
        where d.subscription = p_subscription and d.generation = 0 and o.seq = d.seq and o.generation = p_generation
        returning d.ordering_key
    )
    select array_agg(distinct moved.ordering_key) filter (where moved.ordering_key is not null) into lines from moved;
    perform /*schema*/promote(p_subscription, 0, lines);
    perform /*schema*/promote(p_subscription, p_generation, lines);
    return true;
end
$$;
