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
begin
    perform /*schema*/sees_all();
    with each as materialized (
        select s.name, coalesce(s.lease, interval '5 minutes') as lease, s.timeout from /*schema*/subscription as s
        where s.name = any (p_names)
    ),
    held as materialized (
        select d.id, each.lease from each join /*schema*/job as d on d.subscription = each.name
        where d.status = 'in_flight' and d.locked_by = p_worker and d.lease_expires_at < moment + each.lease * 0.9
          and (each.timeout is null or d.locked_at + each.timeout + each.lease > moment)
        for no key update of d skip locked
    )
    update /*schema*/job as d set lease_expires_at = moment + held.lease from held where d.id = held.id;
    return query
    select d.id, d.lease_token, extract(epoch from d.lease_expires_at - moment)::double precision,
           d.cancelled_at is not null
    from /*schema*/job as d
    where d.subscription = any (p_names) and d.status = 'in_flight' and d.locked_by = p_worker;
end
$$;
