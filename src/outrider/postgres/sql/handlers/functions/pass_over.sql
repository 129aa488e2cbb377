-- pass_over: advance the cursors of a generation that nobody serves past the events of others, and take none of its own.
-- Without it such cursors would keep the log, and generation 0 could not be copied or folded into. Where a cursor has an event of its
-- own to read, it stays where it is.
--
-- Use:    as the first statement of a READ COMMITTED transaction, by workers that are strict.
-- Locks:  the cursors that are behind, without waiting.
-- Reads:  at most p_scan log positions of each cursor.
-- Returns whether nothing was found that waits for a worker: no event to read, none to retry.
-- Why it is exact: it is the read of a take (see read, lock_cursor), which is undone if it returns an event.
create or replace function /*schema*/pass_over(p_subscription text, p_generation bigint, p_scan integer default 100000)
    returns boolean
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
#variable_conflict use_column
declare
    drawn bigint := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);
    home  bigint := /*schema*/log_home();
    sub   /*schema*/subscription;
    cur   /*schema*/cursor;
    place integer;
    seqs  bigint[];
    empty boolean := true;
begin
    perform /*schema*/sees_all();
    if current_setting('transaction_isolation') <> 'read committed'
       or pg_current_xact_id_if_assigned() is not null then
        raise 'pass_over must be the first statement of a READ COMMITTED transaction' using errcode = 'OR001';
    end if;
    -- By delivery_due and delivery_line. A retry that is in neither has not been read: the read finds it.
    if exists (select from /*schema*/delivery as d
               where d.subscription = p_subscription and d.generation = p_generation
                 and d.status = 'pending' and d.head and d.reached)
       or exists (select from /*schema*/delivery as d
                  where d.subscription = p_subscription and d.generation = p_generation
                    and d.status = 'pending' and d.ordering_key is not null) then
        return false;
    end if;
    for place in
        select c.partition from /*schema*/cursor as c
        where c.subscription = p_subscription and c.generation = p_generation
          and (c.seq < drawn or c.owing is not null) order by c.partition
    loop
        begin
            select c.* into cur from /*schema*/cursor as c
            where c.subscription = p_subscription and c.generation = p_generation and c.partition = place
            for update skip locked;
            if not found then
                raise sqlstate 'OR000';
            end if;
            -- After the lock: doubling the partitions locks the cursors first.
            select s.* into strict sub from /*schema*/subscription as s where s.name = p_subscription;
            select read.seqs into seqs from /*schema*/read(cur, sub, drawn, home, 1, p_scan) as read;
            if seqs <> '{}' then
                raise sqlstate 'OR000';
            end if;
        exception when sqlstate 'OR000' then
            empty := false;
        end;
    end loop;
    return empty;
end
$$;
