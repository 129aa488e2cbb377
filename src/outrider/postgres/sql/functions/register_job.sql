-- register_job: the limits of a job type that is registered, as its code declares them now. When a key may have more
-- running than before, what was set aside is looked at again.
-- Locks:  the limits of the type; its row.
create or replace function /*schema*/register_job(
    p_name text, p_lease interval, p_timeout interval, p_concurrency integer, p_key_concurrency integer
) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_xact_lock(hashtextextended('/*schema*/' || p_name, 6));
    update /*schema*/subscription as s
    set lease = p_lease, timeout = p_timeout, concurrency = p_concurrency, key_concurrency = p_key_concurrency
    where s.name = p_name
      and (s.lease, s.timeout, s.concurrency, s.key_concurrency)
          is distinct from (p_lease, p_timeout, p_concurrency, p_key_concurrency);
    if found then
        update /*schema*/delivery as d set waiting = false where d.subscription = p_name and d.waiting;
        perform /*schema*/wake(array[p_name]);
    end if;
end
$$;
