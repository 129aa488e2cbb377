-- upkeep_lock: take the lock of upkeep until the transaction ends; false if another session has it.
-- It also sets lock_timeout for the calling function, to the time that publishers may wait behind it.
create or replace function /*schema*/upkeep_lock() returns boolean
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'upkeep needs a READ COMMITTED transaction, this one is %', current_setting('transaction_isolation')
            using errcode = 'OR009';
    end if;
    perform /*schema*/sees_all(true);  -- it would take rows that it does not see for handled
    perform set_config('lock_timeout', coalesce(/*schema*/setting_value('upkeep.lock_timeout_ms'), 200)::text, true);
    -- A caller that hangs must not keep the log locked; from Postgres 17 on, nor one that runs for long.
    perform set_config('idle_in_transaction_session_timeout', '1000', true);
    if current_setting('server_version_num')::integer >= 170000 then
        perform set_config('transaction_timeout', '20000', true);
    end if;
    -- A row, because anybody could hold an advisory lock.
    insert into /*schema*/upkeep (task) values ('lock') on conflict do nothing;
    perform from /*schema*/upkeep as u where u.task = 'lock' for update skip locked;
    return found;
end
$$;
