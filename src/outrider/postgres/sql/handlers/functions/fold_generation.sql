-- fold_generation: delete the cursors of a generation that has nothing left to read; generation 0 reads its events again.
-- Its parked events move to generation 0. Returns false if there is something to read or a lock is taken: try again later.
--
-- Use:    as the first statement of a READ COMMITTED transaction, for generations without workers. Runs as the owner, because
--         the counters are dropped with the cursors.
-- Locks:  the subscription row and the cursors of both generations, without waiting.
-- Reads:  outbox by seq, at most 100,000 rows behind the cursors; events of late transactions, by (tx, seq).
-- Why it is exact: the cursors of generation 0 stay where they are. One snapshot, taken after the locks, shows two things. The
-- generation's own cursors have read all of its visible events. The cursors of generation 0 will not find any of these again,
-- neither above their position nor as late events. An event that is not visible yet was visible to neither, and every cursor finds
-- it later, whatever the cursor has wanted until now.
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
    -- register and open_generation hold this row while they add cursors.
    select s.* into sub from /*schema*/subscription as s where s.name = p_subscription for no key update skip locked;
    if (select count(*) from (select from /*schema*/cursor as c
                              where c.subscription = p_subscription and c.generation in (0, p_generation)
                              order by c.generation, c.partition for update skip locked) as held)
       is distinct from 2 * sub.partitions then
        return false;
    end if;

    select /*schema*/foreign_floor(pg_current_snapshot()),
           -- LIMIT 1, because for a plain join the planner might scan the log once per cursor.
           exists (select from /*schema*/outbox as o cross join lateral (
                       select from /*schema*/cursor as c
                       where c.subscription = p_subscription and c.generation in (0, p_generation) and o.seq > c.seq
                         and c.partition = coalesce(hashtextextended(o.aggregate_id, 0), o.seq) & (sub.partitions - 1)
                       limit 1) as not_passed
                   where o.seq > lowest and o.generation = p_generation
                     and /*schema*/concerns(o, sub))
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
                        and /*schema*/concerns(o, sub))
    into strangers, unread;
    if unread or exists (
        select from /*schema*/cursor as c
        where c.subscription = p_subscription and c.generation in (0, p_generation)
          -- Pages of late events, an open breaker, or a restore after which no take has rebased the cursor.
          and (c.owing is not null or c.open_until > now() or strangers > c.seq
               or c.cluster <> (select /*schema*/log_home())
               or c.horizon >= pg_snapshot_xmax(pg_current_snapshot()))) then
        return false;
    end if;

    -- The generation's cursor has read these; generation 0 must not find them again as late events: see read.
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
