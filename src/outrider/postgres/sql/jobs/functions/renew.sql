-- renew: renew the leases of a worker's jobs. A job that has run past its timeout by more than a lease is left to expire.
-- Locks:  the jobs, SKIP LOCKED: whoever holds one is about to settle it, and waiting for it could deadlock.
-- Reads:  job_running: the running jobs of these types.
-- Returns all jobs that the worker holds: the seconds left of each lease, and whether the job is to be cancelled.
create or replace function /*schema*/renew(p_worker uuid, p_names text[])
    returns table (delivery bigint, token bigint, lease double precision, cancelled boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set jit = off
as $$
#variable_conflict use_column
declare
    moment timestamptz := clock_timestamp();
    places tid[];
begin
    perform /*schema*/sees_all();
    places := array(
        select d.ctid from /*schema*/subscription as s join /*schema*/job as d on d.subscription = s.name
        where s.name = any (p_names) and d.status = 'in_flight' and d.locked_by = p_worker
          and d.lease_expires_at < moment + coalesce(s.lease, interval '5 minutes') * 0.9
          and (s.timeout is null or d.locked_at + s.timeout + coalesce(s.lease, interval '5 minutes') > moment)
        for no key update of d skip locked);
    update /*schema*/job as d set lease_expires_at = moment + coalesce(s.lease, interval '5 minutes')
    from unnest(places) as q (place), /*schema*/subscription as s
    where d.ctid = q.place and s.name = d.subscription;
    return query
    select d.id, d.lease_token, extract(epoch from d.lease_expires_at - moment)::double precision,
           d.cancelled_at is not null
    from /*schema*/job as d
    where d.subscription = any (p_names) and d.status = 'in_flight' and d.locked_by = p_worker;
end
$$;
