-- pick_suspect: one job of these types whose worker died, if its limits leave room for it. For claim.
-- Locks:  the first of each type, FOR UPDATE SKIP LOCKED.
-- Reads:  job_suspect, up to the first that is not locked; if p_limited, the running jobs of the type.
-- Returns places: of that job, or none. held: there is one, and others have it locked.
create or replace function /*schema*/pick_suspect(
    p_names text[], p_generation bigint, p_queues text[], p_limited boolean, p_strict boolean, out places tid[], out held boolean
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
begin
    places := array(
        select picked.place from unnest(p_names) as n (name)
        cross join lateral (
            select j.ctid as place, /*schema*/claim_at(j), j.id from /*schema*/job as j
            where j.subscription = n.name and j.status = 'pending' and j.waits_for is null and j.crashes > 0
              and (p_queues is null or j.queue = any (p_queues))
              and (j.generation = p_generation
                   or not p_strict and not /*schema*/has_workers(j.subscription, j.generation, j.queue))
              and (not p_limited or /*schema*/room(j.subscription, j.job_key, j.workspace_id) > 0)
            order by /*schema*/claim_at(j), j.id limit 1 for update skip locked) as picked
        order by picked.claim_at, picked.id limit 1);
    held := places = '{}' and exists (
        select from unnest(p_names) as n (name)
        cross join lateral (
            select from /*schema*/job as j
            where j.subscription = n.name and j.status = 'pending' and j.waits_for is null and j.crashes > 0
              and (p_queues is null or j.queue = any (p_queues))
              and (j.generation = p_generation
                   or not p_strict and not /*schema*/has_workers(j.subscription, j.generation, j.queue))
              and (not p_limited or /*schema*/room(j.subscription, j.job_key, j.workspace_id) > 0) limit 1) as j);
end
$$;
