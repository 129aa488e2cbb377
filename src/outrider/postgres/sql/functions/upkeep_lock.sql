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
    -- A caller that stands still does not keep the log locked.
    perform set_config('idle_in_transaction_session_timeout', '1000', true);
    return pg_try_advisory_xact_lock(hashtextextended('/*schema*/upkeep', 0));
end
$$;
