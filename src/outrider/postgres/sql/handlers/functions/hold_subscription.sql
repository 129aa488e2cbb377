-- hold_subscription: nobody registers, renames, retires or takes from a subscription until the transaction ends.
-- Locks:  its row, so weakly that a take may still refer to it: one that parks events does, under the lock of its cursor, for
--         which we wait next, and for the batches in progress. After the row, so that no partition is added meanwhile.
create or replace function /*schema*/hold_subscription(p_name text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/sees_all(true);  -- whoever does not would leave behind what it does not see
    perform from /*schema*/subscription as s where s.name = p_name for no key update;
    if not found then
        raise 'there is no subscription %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    perform from /*schema*/cursor as c where c.subscription = p_name order by c.generation, c.partition for update;
end
$$;
