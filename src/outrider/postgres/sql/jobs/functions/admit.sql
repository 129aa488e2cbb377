-- admit: make jobs that wait for their key claimable again, as many of each queue and generation as the key has room for.
-- Of each, because this worker may not serve all of them; claim sets aside again those that find no room.
-- The caller holds the limits of these types.
-- Locks:  those jobs, SKIP LOCKED.
-- Reads:  delivery by job_waiting: one look-up per waiting key (no more keys wait than run), and one for each of its queues,
--         generations and priorities; the running jobs.
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
    free record;
    left_out integer;
    held boolean := false;
begin
    for free in
        with recursive waiting as (
            select first.* from unnest(p_names) as n (name)
            cross join lateral (
                select w.subscription, coalesce(w.workspace_id, '') as tenant, w.job_key from /*schema*/delivery as w
                where w.subscription = n.name and w.waiting
                order by coalesce(w.workspace_id, ''), w.job_key limit 1) as first
            union all
            select next.* from waiting
            cross join lateral (
                select w.subscription, coalesce(w.workspace_id, '') as tenant, w.job_key from /*schema*/delivery as w
                where w.subscription = waiting.subscription and w.waiting
                  and (coalesce(w.workspace_id, ''), w.job_key) > (waiting.tenant, waiting.job_key)
                order by coalesce(w.workspace_id, ''), w.job_key limit 1) as next
        ),
        running as materialized (
            select d.subscription, coalesce(d.workspace_id, '') as tenant, d.job_key, count(*) as jobs
            from /*schema*/delivery as d
            where d.subscription = any (p_names) and d.status = 'in_flight'
            group by 1, 2, 3
        )
        select waiting.*, coalesce(s.key_concurrency - coalesce(running.jobs, 0), 1000) as room
        from waiting join /*schema*/subscription as s on s.name = waiting.subscription
        left join running on running.subscription = waiting.subscription and running.tenant = waiting.tenant
                         and running.job_key = waiting.job_key
        where (s.key_concurrency > coalesce(running.jobs, 0)) is not false
          and (s.concurrency > (select sum(r.jobs) from running as r where r.subscription = s.name)) is not false
    loop
        with recursive lane as (
            (select w.queue, w.generation, w.priority from /*schema*/delivery as w
             where w.subscription = free.subscription and coalesce(w.workspace_id, '') = free.tenant
               and w.job_key = free.job_key and w.waiting
             order by w.queue, w.generation, w.priority limit 1)
            union all
            select next.* from lane
            cross join lateral (
                select w.queue, w.generation, w.priority from /*schema*/delivery as w
                where w.subscription = free.subscription and coalesce(w.workspace_id, '') = free.tenant
                  and w.job_key = free.job_key and w.waiting
                  and (w.queue, w.generation, w.priority) > (lane.queue, lane.generation, lane.priority)
                order by w.queue, w.generation, w.priority limit 1) as next
        ),
        first as materialized (
            select w.id, lane.queue, lane.generation,
                   row_number() over (partition by lane.queue, lane.generation
                                      order by w.run_at - lane.priority * interval '1 minute', w.run_at, w.id) as place
            from lane
            cross join lateral (
                select w.id, w.run_at from /*schema*/delivery as w
                where w.subscription = free.subscription and coalesce(w.workspace_id, '') = free.tenant
                  and w.job_key = free.job_key and w.waiting and w.queue = lane.queue and w.generation = lane.generation
                  and w.priority = lane.priority
                order by w.run_at, w.id limit free.room for no key update skip locked) as w
        ),
        admitted as (
            update /*schema*/delivery as d set waiting = false
            from first where d.id = first.id and first.place <= free.room
        )
        select count(*) into left_out
        from (select lane.queue, lane.generation from lane except select first.queue, first.generation from first) as none;
        held := held or left_out > 0;
    end loop;
    return held;
end
$$;
