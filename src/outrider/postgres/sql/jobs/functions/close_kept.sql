-- close_kept: mark jobs that open transactions keep (on_conflict keep), and that cannot be claimed before these end, as closed.
-- From then on an enqueue with the same unique key creates another job, so this one does not wait for later transactions too.
-- p_until: only jobs up to this claim_at, whose turn it was. p_suspects: the types whose suspects the caller would have claimed too.
-- Locks:  those jobs, SKIP LOCKED.
-- Reads:  the first 100 claimable jobs of each lane, and the first 100 suspects of each type.
create or replace function /*schema*/close_kept(p_lanes /*schema*/lane[], p_suspects text[], p_until timestamp) returns void
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
            where /*schema*/in_lane(j, l) and /*schema*/claim_at(j) <= p_until
            order by /*schema*/claim_at(j), j.id limit 100) as j
        where j.unique_key is not null and not j.closed
        union all
        select j.id from unnest(p_suspects) as n (name)
        cross join lateral (
            select j.id, j.unique_key, j.closed from /*schema*/job as j
            where j.subscription = n.name and j.status = 'pending' and j.waits_for is null and j.crashes > 0
            order by /*schema*/claim_at(j), j.id limit 100) as j
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
