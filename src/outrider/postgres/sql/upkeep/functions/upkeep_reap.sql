-- upkeep_reap: reap jobs whose lease expired more than a minute ago, because no worker claims their type any more. At most p_limit.
create or replace function /*schema*/upkeep_reap(p_dry boolean default false, p_limit integer default 500)
    returns setof /*schema*/upkept
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '200ms'
as $$
declare
    before timestamptz := clock_timestamp() - interval '1 minute';
    names  text[];
    jobs   bigint;
begin
    if (p_limit between 1 and 10000) is not true then
        raise 'a step of upkeep is 1 to 10000, not %', p_limit using errcode = 'OR009';
    end if;
    if not /*schema*/upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::/*schema*/upkept;
        return;
    end if;
    select array_agg(distinct j.subscription order by j.subscription), count(*) into names, jobs
    from /*schema*/job as j where j.status = 'in_flight' and j.lease_expires_at < before;
    if names is null then
        return;
    end if;
    if not p_dry then
        jobs := /*schema*/reap(names, null, p_limit);
    end if;
    if jobs > 0 then
        return next ('reaped', array_to_string(names, ', '), jobs, null)::/*schema*/upkept;
    end if;
end
$$;
