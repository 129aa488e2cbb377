-- tenants_due: up to p_most tenants of each of these lanes that have a claimable job.
-- It skips from one tenant to the next, starting at a random place and wrapping around, so that none is left out for long, however
-- many there are.
-- A tenant is the hash of its workspace, so that places are random even if names are not. Two with the same hash share their turns.
-- Reads:  job_turn, one look-up for each tenant. Locks nothing.
create or replace function /*schema*/tenants_due(p_lanes /*schema*/lane[], p_most integer)
    returns table (lane /*schema*/lane, tenant bigint)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
#variable_conflict use_column
declare
    start bigint := ((random() - 0.5) * 18446744073709549568)::bigint;
begin
    return query
    with recursive step as (
        select l as lane, start as tenant, false as wrapped, 0 as found from unnest(p_lanes) as l where l.tenanted = 1
        union all
        select step.lane, next.tenant, next.wrapped, step.found + 1
        from step
        cross join lateral (
            (select hashtextextended(j.workspace_id, 0) as tenant, step.wrapped as wrapped
             from /*schema*/job as j
             where /*schema*/in_turn(j, step.lane) and hashtextextended(j.workspace_id, 0) > step.tenant
               and (not step.wrapped or hashtextextended(j.workspace_id, 0) <= start)
             order by hashtextextended(j.workspace_id, 0) limit 1)
            union all
            (select hashtextextended(j.workspace_id, 0), true
             from /*schema*/job as j
             where not step.wrapped and /*schema*/in_turn(j, step.lane) and hashtextextended(j.workspace_id, 0) <= start
             order by hashtextextended(j.workspace_id, 0) limit 1)
            limit 1) as next
        where step.found < p_most
    )
    select step.lane, step.tenant from step where step.found > 0;
end
$$;
