-- upkeep_lock: whoever does a step of upkeep does it alone, until the end of the transaction. False: somebody else is at it.
-- From here on the function that calls waits for a lock no longer than publishers may wait behind it.
create or replace function /*schema*/upkeep_lock() returns boolean
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'upkeep needs a READ COMMITTED transaction, this one is %', current_setting('transaction_isolation')
            using errcode = 'OR009';
    end if;
    perform /*schema*/sees_all(true);  -- what it does not see it would take for not owed
    perform set_config('lock_timeout', coalesce(/*schema*/setting_value('upkeep.lock_timeout_ms'), 200)::text, true);
    -- A caller that stands still does not keep the log locked; nor, where the server knows how to, one that goes on.
    perform set_config('idle_in_transaction_session_timeout', '1000', true);
    if current_setting('server_version_num')::integer >= 170000 then
        perform set_config('transaction_timeout', '20000', true);
    end if;
    -- A row, and no advisory lock, which anybody could hold.
    insert into /*schema*/upkeep (task) values ('lock') on conflict do nothing;
    perform from /*schema*/upkeep as u where u.task = 'lock' for update skip locked;
    return found;
end
$$;
