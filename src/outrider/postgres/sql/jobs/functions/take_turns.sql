-- take_turns: if these lanes hold more than p_wanted jobs, pick p_wanted so that every tenant has its turn; else none.
-- First comes the first job of each tenant, then the second, and so on; a running job is a turn already taken. Within a tenant the
-- order is claim's. Jobs without a workspace are one more tenant.
-- Locks:  the jobs, FOR UPDATE SKIP LOCKED.
-- Reads:  job_ready for jobs without a workspace, job_turn for the tenants (see tenants_due), of each about as many jobs as it may
--         get; and up to 1,000 running jobs.
-- Returns the places (ctid) of the jobs.
create or replace function /*schema*/take_turns(p_lanes /*schema*/lane[], p_wanted integer) returns tid[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
#variable_conflict use_column
declare
    seed bigint := (random() * 4294967296)::bigint;
begin
    if (select count(*) from (
            select from unnest(p_lanes) as l
            cross join lateral (select from /*schema*/job as j where /*schema*/in_lane(j, l) limit p_wanted + 1) as j
            limit p_wanted + 1) as ready) <= p_wanted then
        return '{}';
    end if;
    return array(
        with tenant as materialized (
            select t.lane, t.tenant from /*schema*/tenants_due(p_lanes, least(64, 2 * p_wanted + 6)) as t
        ),
        -- Of each tenant about twice its share, because some have fewer; pick adds what is missing.
        most as materialized (
            select least(p_wanted, 1 + ceil(2.0 * p_wanted / greatest(1, count(distinct tenant.tenant)))::integer) as jobs
            from tenant
        ),
        running as materialized (
            select r.tenant, count(*) as jobs
            from (select hashtextextended(j.workspace_id, 0) as tenant from /*schema*/job as j
                  where j.subscription = any (array(select l.subscription from unnest(p_lanes) as l))
                    and j.status = 'in_flight' limit 1000) as r
            group by r.tenant
        ),
        next as materialized (
            select tenant.lane, tenant.tenant, j.claim_at, j.id from tenant cross join most
            cross join lateral (
                select /*schema*/claim_at(j), j.id from /*schema*/job as j
                where /*schema*/in_turn(j, tenant.lane) and hashtextextended(j.workspace_id, 0) = tenant.tenant
                order by /*schema*/claim_at(j), j.id limit most.jobs) as j
            union all
            select l, null, j.claim_at, j.id from unnest(p_lanes) as l cross join most
            cross join lateral (
                select /*schema*/claim_at(j), j.id from /*schema*/job as j
                where /*schema*/in_lane(j, l) order by /*schema*/claim_at(j), j.id limit most.jobs) as j
            where l.tenanted = 0
        ),
        share as materialized (
            select turn.lane, turn.tenant, count(*) as jobs
            from (select next.lane, next.tenant from next
                  left join running on running.tenant is not distinct from next.tenant
                  order by coalesce(running.jobs, 0)
                               + row_number() over (partition by next.tenant order by next.claim_at, next.id),
                           hashint8extended(coalesce(next.tenant, 0), seed), next.claim_at, next.id
                  limit p_wanted) as turn
            group by 1, 2
        )
        select picked.place from share
        cross join lateral (
            select j.ctid as place from /*schema*/job as j
            where /*schema*/in_lane(j, share.lane)
            order by /*schema*/claim_at(j), j.id limit share.jobs for update skip locked) as picked
        where share.tenant is null
        union all
        select picked.place from share
        cross join lateral (
            select j.ctid as place from /*schema*/job as j
            where /*schema*/in_turn(j, share.lane) and hashtextextended(j.workspace_id, 0) = share.tenant
            order by /*schema*/claim_at(j), j.id limit share.jobs for update skip locked) as picked
        where share.tenant is not null);
end
$$;
