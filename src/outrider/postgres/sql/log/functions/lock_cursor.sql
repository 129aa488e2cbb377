-- lock_cursor: find a partition that has something to read and that nobody holds, and lock its cursor.
-- This is step 1 of the exact read, and half of step 2 (read). Without p_partition, partitions are tried in random order.
--
-- Use:    in a READ COMMITTED transaction that has not written anything yet.
-- Locks:  one cursor row, FOR UPDATE SKIP LOCKED: the lease of the partition, held until the transaction ends.
-- Returns outcome: taken, busy (others hold what there is to read), open (the breaker is), idle (no transaction id was used).
--         drawn: the last log position handed out before we had a transaction id. home: that of the log (log_home).
create or replace function /*schema*/lock_cursor(
    p_subscription text, p_partition integer, p_generation bigint, p_armed bigint,
    out outcome text, out locked /*schema*/cursor, out drawn bigint, out home bigint
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    cur /*schema*/cursor;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'take needs a READ COMMITTED transaction, this one is %', current_setting('transaction_isolation')
            using errcode = 'OR001', hint = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    end if;
    if pg_current_xact_id_if_assigned() is not null then
        raise 'take must come before any write in its transaction'
            using errcode = 'OR001', hint = 'Take once, at the start of a new transaction.';
    end if;

    drawn := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);
    home := /*schema*/log_home();
    for cur in
        select c.* from /*schema*/cursor as c
        where c.subscription = p_subscription and c.generation = p_generation
          and (p_partition is null or c.partition = p_partition)
        order by random()
    loop
        -- Ask the sequence again: another session may have read further since.
        if cur.seq > drawn and cur.seq > coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0) then
            raise 'the cursor of "%" is at position %, ahead of the log, which has used %', p_subscription, cur.seq, drawn
                using errcode = 'OR003',
                      hint = 'The log was restored without its sequence, or the sequence was set back.';
        end if;
        if cur.open_until > now() and p_armed is null then
            outcome := coalesce(nullif(outcome, 'idle'), 'open');
            continue;
        end if;
        if cur.cluster = home and cur.horizon < pg_snapshot_xmax(pg_current_snapshot())
           and cur.seq >= drawn and cur.owing is null and p_armed is null then
            if not exists (select from /*schema*/delivery as d
                           where d.subscription = p_subscription and d.generation = p_generation
                             and d.partition = cur.partition and d.status = 'pending' and d.head and d.reached
                             and d.run_at <= now())
               and not exists (select from /*schema*/late_transactions(
                                   cur.inflight, cur.horizon, pg_current_snapshot(), cur.floor, cur.seq)) then
                outcome := coalesce(outcome, 'idle');
                continue;
            end if;
        end if;
        select c.* into locked from /*schema*/cursor as c
        where c.subscription = p_subscription and c.generation = p_generation and c.partition = cur.partition
        for update skip locked;
        if found then
            outcome := 'taken';
            return;
        end if;
        outcome := 'busy';
    end loop;
    if outcome is null then
        raise 'there is no cursor for subscription "%", generation %, partition %',
            p_subscription, p_generation, coalesce(p_partition::text, 'any')
            using errcode = 'OR002', hint = coalesce(
                (select format('Its partitions are 0 to %s.', s.partitions - 1)
                 from /*schema*/subscription as s where s.name = p_subscription),
                'Register the subscription first: app.migrate() or outrider migrate --app.');
    end if;
end
$$;
