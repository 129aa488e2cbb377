-- reap: jobs whose lease has run out are given to others. A crash is counted only where the worker was not seen for a while:
-- one that lives, but could not renew, did not die; and one that was told to stop may have been killed for it.
-- p_worker: all that this worker held, at once, because it has ended. p_begun: those that it had begun, where that is known;
-- the others are as if they had not been claimed.
-- Locks:  the jobs, SKIP LOCKED. Returns how many. One whose unique key an open transaction is enqueuing is left for later.
-- Reads:  delivery by (subscription, lease_expires_at): only what has run out, at most p_limit.
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
    job    /*schema*/delivery;
    before timestamptz := case when p_worker is null then clock_timestamp() else 'infinity' end;
    reaped integer := 0;
begin
    perform /*schema*/sees_all();
    if not exists (select from /*schema*/delivery as d
                   where d.subscription = any (p_names) and d.status = 'in_flight' and d.lease_expires_at < before) then
        return 0;
    end if;
    for job in
        select d.* from /*schema*/delivery as d
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
            update /*schema*/delivery as d set lease_expires_at = clock_timestamp() + interval '1 second' where d.id = job.id;
        end;
    end loop;
    perform /*schema*/wake_jobs(p_names) where reaped > 0;
    return reaped;
end
$$;
