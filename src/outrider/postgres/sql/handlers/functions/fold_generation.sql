-- fold_generation: the cursors of a generation that has nothing left to read go, and those of generation 0 read its
-- events again. What is parked of it goes with them. True when it was done; false when there was something to read, or
-- when somebody was at work: try again later.
--
-- Use:    alone in a READ COMMITTED transaction, for generations that have no worker. Runs with the rights of its
--         owner, because the counters go with the cursors.
-- Locks:  the subscription row and the cursors of both, without waiting.
-- Reads:  outbox by seq, at most 100,000 rows behind the cursors, and what late transactions left, by (tx, seq).
-- Why it is exact: the cursors of generation 0 stay where they are. One snapshot, taken after the locks, shows that all
-- that is visible of the generation has been read by its own cursors, and that those of generation 0 will not find any
-- of it: none lies above them or comes late for them. What is not visible yet was not visible to either, and a cursor
-- finds that, whatever it has wanted until now.
create or replace function /*schema*/fold_generation(p_subscription text, p_generation bigint) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '2s'
    set enable_seqscan = off
    set jit = off
as $$
declare
    sub       /*schema*/subscription;
    lowest    bigint;
    strangers bigint;
    unread    boolean;
    lines     text[];
begin
    perform /*schema*/sees_all(true);
    if current_setting('transaction_isolation') <> 'read committed'
       or pg_current_xact_id_if_assigned() is not null then
        raise 'fold_generation must be the first statement of a READ COMMITTED transaction' using errcode = 'OR001';
    end if;
    lowest := (select min(c.seq) from /*schema*/cursor as c
               where c.subscription = p_subscription and c.generation in (0, p_generation));
    if p_generation = 0 or lowest < pg_sequence_last_value('/*schema*/outbox_seq'::regclass) - 100000 then
        return false;
    end if;
    -- Whoever holds it sees to it that there are no more and no fewer cursors: register, open_generation.
    select s.* into sub from /*schema*/subscription as s where s.name = p_subscription for no key update skip locked;
    if (select count(*) from (select from /*schema*/cursor as c
                              where c.subscription = p_subscription and c.generation in (0, p_generation)
                              order by c.generation, c.partition for update skip locked) as held)
       is distinct from 2 * sub.partitions then
        return false;
    end if;

    select /*schema*/foreign_floor(pg_current_snapshot()),
           -- The limit: as a plain join the planner might go through the log once for each cursor.
           exists (select from /*schema*/outbox as o cross join lateral (
                       select from /*schema*/cursor as c
                       where c.subscription = p_subscription and c.generation in (0, p_generation) and o.seq > c.seq
                         and c.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1)
                       limit 1) as not_passed
                   where o.seq > lowest and o.generation = p_generation
                     and (sub.event_types is null or o.event_type = any (sub.event_types))
                     and (o.target is null or o.target = sub.context))
           or exists (select from /*schema*/cursor as c
                      cross join /*schema*/late_transactions(
                          c.inflight, c.horizon, pg_current_snapshot(), c.floor, c.seq) as late (tx)
                      cross join lateral (
                          select o.* from /*schema*/outbox as o
                          where (o.tx, o.seq) > (late.tx, c.floor) and (o.tx, o.seq) <= (late.tx, c.seq)
                            and o.seq > c.floor and o.seq <= c.seq
                          order by o.tx, o.seq) as o
                      where c.subscription = p_subscription and c.generation in (0, p_generation)
                        and c.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1)
                        and o.generation = p_generation
                        and (sub.event_types is null or o.event_type = any (sub.event_types))
                        and (o.target is null or o.target = sub.context))
    into strangers, unread;
    if unread or exists (
        select from /*schema*/cursor as c
        where c.subscription = p_subscription and c.generation in (0, p_generation)
          -- Pages of late events, a breaker; a restore that takes have not come to terms with.
          and (c.owing is not null or c.open_until > now() or strangers > c.seq
               or c.cluster <> (select /*schema*/log_home())
               or c.horizon >= pg_snapshot_xmax(pg_current_snapshot()))) then
        return false;
    end if;

    -- Read by the other cursor, and not to be found again as a late one: see take.
    update /*schema*/cursor as c set floor = strangers
    where c.subscription = p_subscription and c.generation = 0 and c.floor < strangers;
    with moved as (
        update /*schema*/delivery as d set generation = 0, head = d.ordering_key is null and d.head
        where d.subscription = p_subscription and d.generation = p_generation
        returning d.ordering_key
    )
    select array_agg(distinct moved.ordering_key) filter (where moved.ordering_key is not null) into lines from moved;
    perform /*schema*/promote(p_subscription, 0, lines);
    delete from /*schema*/cursor as c where c.subscription = p_subscription and c.generation = p_generation;
    return true;
end
$$;
