-- register_job: set the options of a registered job type to what its code declares now. The next claims and settlements use them.
-- Locks:  the row of the type.
create or replace function /*schema*/register_job(
    p_name text, p_lease interval, p_timeout interval, p_concurrency integer, p_key_concurrency integer,
    p_keep interval default null
) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update /*schema*/subscription as s
    set lease = p_lease, timeout = p_timeout, concurrency = p_concurrency, key_concurrency = p_key_concurrency,
        keep = p_keep
    where s.name = p_name
      and (s.lease, s.timeout, s.concurrency, s.key_concurrency, s.keep)
          is distinct from (p_lease, p_timeout, p_concurrency, p_key_concurrency, p_keep);
    if found then
        perform /*schema*/wake(array[p_name]);
    end if;
end
$$;
