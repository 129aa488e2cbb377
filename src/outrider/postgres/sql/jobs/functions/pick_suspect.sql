-- pick_suspect: one job of these types whose worker died, if its limits leave room for it. For claim.
-- Locks:  the job, FOR UPDATE SKIP LOCKED.
-- Reads:  job_suspect, at most 100 of each type; if p_limited, the running jobs of the type.
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
declare
    found bigint[] := array(
        select j.id from unnest(p_names) as n (name)
        cross join lateral (
            select j.id from /*schema*/job as j
            where j.subscription = n.name and j.status = 'pending' and j.waits_for is null and j.crashes > 0
              and (p_queues is null or j.queue = any (p_queues))
              and (j.generation = p_generation
                   or not p_strict and not /*schema*/has_workers(j.subscription, j.generation, j.queue))
              and (not p_limited or /*schema*/room(j.subscription, j.job_key, j.workspace_id) > 0)
            order by /*schema*/claim_at(j), j.id limit 100) as j);
begin
    places := array(
        select j.ctid from /*schema*/job as j
        where j.id = any (found) and j.status = 'pending' and j.waits_for is null
        order by /*schema*/claim_at(j), j.id limit 1 for update skip locked);
    held := found <> '{}' and places = '{}';
end
$$;
