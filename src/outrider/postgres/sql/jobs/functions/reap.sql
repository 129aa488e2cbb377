-- reap: release jobs whose lease has expired, so that others can claim them.
-- It counts a crash only if the worker has not been seen for 15 s: a worker that lives but could not renew did not die. Nor does it
-- count for a worker that was stopping, which may have been killed for being slow.
-- p_worker: all jobs of this worker at once, because it has ended. p_begun: those that it had begun, if known; the others are
-- handed back as if they had not been claimed.
-- Locks:  the jobs, SKIP LOCKED. A job whose unique key an open transaction is enqueuing is left for a second later: it waits
--         20 ms for the first of those and 1 ms for each other.
-- Reads:  job_running: only expired leases, at most p_limit.
-- Returns how many it released.
create or replace function /*schema*/reap(p_names text[], p_worker uuid default null, p_limit integer default 500,
                                               p_begun bigint[] default null)
    returns integer
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
    set lock_timeout = '20ms'
as $$
declare
    job    /*schema*/job;
    before timestamptz := case when p_worker is null then clock_timestamp() else 'infinity' end;
    reaped integer := 0;
begin
    perform /*schema*/sees_all();
    if not exists (select from /*schema*/job as d
                   where d.subscription = any (p_names) and d.status = 'in_flight' and d.lease_expires_at < before) then
        return 0;
    end if;
    for job in
        select d.* from /*schema*/job as d
        where d.subscription = any (p_names) and d.status = 'in_flight'
          and d.lease_expires_at < before and (p_worker is null or d.locked_by = p_worker)
        order by d.subscription, d.lease_expires_at limit p_limit
        for no key update skip locked
    loop
        begin
            perform /*schema*/release(
                job,
                case when p_worker is null and exists (
                         select from /*schema*/worker as w
                         where w.id = job.locked_by and w.seen_at > clock_timestamp() - interval '15 seconds') then 'lapsed'
                     when exists (select from /*schema*/worker as w where w.id = job.locked_by and w.stopping) then 'back'
                     when p_worker is not null and job.id <> all (p_begun) then 'back'
                     else 'crashed' end,
                p_worker => job.locked_by::text);
            reaped := reaped + 1;
        exception when lock_not_available then
            update /*schema*/job as d set lease_expires_at = clock_timestamp() + interval '1 second' where d.id = job.id;
            perform set_config('lock_timeout', '1ms', true);
        end;
    end loop;
    perform /*schema*/wake_jobs(p_names) where reaped > 0;
    return reaped;
end
$$;
