-- hold_subscription: lock a subscription, so that nobody registers, renames, retires or takes from it until the transaction ends.
-- Locks:  first its row, so that no partition is added meanwhile; NO KEY UPDATE, because a take that parks events checks the
--         foreign key to it. Then its cursors, waiting for the batches in progress.
create or replace function /*schema*/hold_subscription(p_name text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/sees_all(true);  -- otherwise the change would leave out rows that the role does not see
    perform from /*schema*/subscription as s where s.name = p_name for no key update;
    if not found then
        raise 'there is no subscription %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    perform from /*schema*/cursor as c where c.subscription = p_name order by c.generation, c.partition for update;
end
$$;
