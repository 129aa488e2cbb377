-- close_kept: mark jobs that open transactions keep (on_conflict keep), and that cannot be claimed before these end, as closed.
-- From then on an enqueue with the same unique key creates another job, so this one does not wait for later transactions too.
-- Locks:  those jobs, SKIP LOCKED.
-- Reads:  the first 100 claimable jobs of each lane.
create or replace function /*schema*/close_kept(p_lanes /*schema*/lane[]) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
declare
    kept bigint[] := array(
        select j.id from unnest(p_lanes) as l
        cross join lateral (
            select j.id, j.unique_key, j.closed from /*schema*/job as j
            where /*schema*/in_lane(j, l) order by j.claim_at, j.id limit 100) as j
        where j.unique_key is not null and not j.closed);
    free bigint[];
begin
    if kept = '{}' then
        return;
    end if;
    -- A transaction that keeps a job holds FOR KEY SHARE: we can update the row, but not lock it FOR UPDATE.
    kept := array(select j.id from /*schema*/job as j
                  where j.id = any (kept) and j.status = 'pending' for no key update skip locked);
    free := array(select j.id from /*schema*/job as j where j.id = any (kept) for update skip locked);
    update /*schema*/job as j set closed = true where j.id = any (kept) and j.id <> all (free);
end
$$;
