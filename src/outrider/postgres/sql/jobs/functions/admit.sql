-- admit: make jobs that wait for their key claimable again, as many of each queue and generation as the key has room for.
-- Of each, because this worker may not serve all of them; pick_limited sets aside again those that find no room.
-- The caller holds the limits of these types.
-- Locks:  those jobs, SKIP LOCKED.
-- Reads:  job_waiting: one look-up for each key that waits (no more keys wait than run), queue and generation; the running jobs.
-- Returns whether a job still waits only because another transaction is changing it.
create or replace function /*schema*/admit(p_names text[]) returns boolean
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
declare
    held boolean;
begin
    with recursive waiting as (
        select first.* from unnest(p_names) as n (name)
        cross join lateral (
            select j.subscription, coalesce(j.workspace_id, '') as tenant, j.job_key, j.queue, j.generation
            from /*schema*/job as j
            where j.subscription = n.name and j.waits_for = 'key'
            order by coalesce(j.workspace_id, ''), j.job_key, j.queue, j.generation limit 1) as first
        union all
        select next.* from waiting
        cross join lateral (
            select j.subscription, coalesce(j.workspace_id, '') as tenant, j.job_key, j.queue, j.generation
            from /*schema*/job as j
            where j.subscription = waiting.subscription and j.waits_for = 'key'
              and (coalesce(j.workspace_id, ''), j.job_key, j.queue, j.generation)
                  > (waiting.tenant, waiting.job_key, waiting.queue, waiting.generation)
            order by coalesce(j.workspace_id, ''), j.job_key, j.queue, j.generation limit 1) as next
    ),
    running as materialized (
        select j.subscription, coalesce(j.workspace_id, '') as tenant, j.job_key, count(*) as jobs
        from /*schema*/job as j
        where j.subscription = any (p_names) and j.status = 'in_flight'
        group by 1, 2, 3
    ),
    free as materialized (
        select waiting.*, coalesce(s.key_concurrency - coalesce(running.jobs, 0), 1000) as room
        from waiting join /*schema*/subscription as s on s.name = waiting.subscription
        left join running on running.subscription = waiting.subscription and running.tenant = waiting.tenant
                         and running.job_key = waiting.job_key
        where (s.key_concurrency > coalesce(running.jobs, 0)) is not false
          and (s.concurrency > (select sum(r.jobs) from running as r where r.subscription = s.name)) is not false
    ),
    first as materialized (
        select picked.place from free
        left join lateral (
            select j.ctid as place from /*schema*/job as j
            where j.subscription = free.subscription and coalesce(j.workspace_id, '') = free.tenant
              and j.job_key = free.job_key and j.queue = free.queue and j.generation = free.generation
              and j.waits_for = 'key'
            order by /*schema*/claim_at(j), j.id limit free.room for no key update skip locked) as picked on true
    ),
    admitted as (
        update /*schema*/job as j set waits_for = null from first where j.ctid = first.place
    )
    select coalesce(bool_or(first.place is null), false) into held from first;
    return held;
end
$$;
