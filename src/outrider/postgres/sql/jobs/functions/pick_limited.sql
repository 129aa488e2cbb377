-- pick_limited: the next p_wanted jobs of these lanes that their limits leave room for. The caller holds the limits of the types.
-- A job whose key has no room is set aside (waits_for) until a claim finds room for it, so that no later claim reads it again.
-- Tenants take turns, as in take_turns.
-- p_chosen: the places of jobs that this claim has picked already; they count against the limits.
-- Locks:  the candidates, FOR UPDATE SKIP LOCKED.
-- Reads:  job_ready, and job_turn for tenants: of each lane or tenant as many jobs as it may get, and 100 or 10 more to find those
--         of other keys behind them; the running jobs.
-- Returns places: of those jobs. cut: there may be more behind those that were set aside, so the next claim should come at once.
create or replace function /*schema*/pick_limited(
    p_lanes /*schema*/lane[], p_wanted integer, p_chosen tid[], out places tid[], out cut boolean
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
#variable_conflict use_column
declare
    seed   bigint := (random() * 4294967296)::bigint;
    shared boolean := 1 = any (array(select l.tenanted from unnest(p_lanes) as l));
begin
    with running as materialized (
        select j.subscription, j.workspace_id, j.job_key, j.status from /*schema*/job as j
        where j.subscription = any (array(select l.subscription from unnest(p_lanes) as l)) and j.status = 'in_flight'
        union all
        select j.subscription, j.workspace_id, j.job_key, j.status from /*schema*/job as j where j.ctid = any (p_chosen)
    ),
    limits as materialized (
        select s.name, s.key_concurrency,
               coalesce(s.concurrency - (select count(*) from running where running.subscription = s.name), p_wanted) as room
        from /*schema*/subscription as s
        where s.name = any (array(select l.subscription from unnest(p_lanes) as l))
    ),
    tenant as materialized (
        select t.lane, t.tenant from /*schema*/tenants_due(p_lanes, least(64, 2 * p_wanted + 6)) as t where shared
    ),
    -- The tenants one by one; then all together, for those that tenants_due did not return.
    source as materialized (
        select l.lane, l.tenant, limits.*,
               least(limits.room, p_wanted, case when l.tenant is not null then 1 + ceil(2.0 * p_wanted / (
                   select count(distinct tenant.tenant) from tenant)) end)::integer
                   + case when limits.key_concurrency is null then 0 when l.tenant is null then 100 else 10 end as most
        from (select u as lane, null::bigint as tenant from unnest(p_lanes) as u
              union all
              select tenant.lane, tenant.tenant from tenant) as l
        join limits on limits.name = (l.lane).subscription
        where limits.room > 0 and p_wanted > 0
    ),
    locked as materialized (
        select source.name, source.room, source.key_concurrency, source.most, source.lane, source.tenant, j.*
        from source
        cross join lateral (
            select j.ctid as place, j.workspace_id, j.job_key, /*schema*/claim_at(j), j.id from /*schema*/job as j
            where /*schema*/in_lane(j, source.lane)
            order by /*schema*/claim_at(j), j.id limit source.most for update skip locked) as j
        where source.tenant is null
        union all
        select source.name, source.room, source.key_concurrency, source.most, source.lane, source.tenant, j.*
        from source
        cross join lateral (
            select j.ctid as place, j.workspace_id, j.job_key, /*schema*/claim_at(j), j.id from /*schema*/job as j
            where /*schema*/in_turn(j, source.lane) and hashtextextended(j.workspace_id, 0) = source.tenant
            order by /*schema*/claim_at(j), j.id limit source.most for update skip locked) as j
        where source.tenant is not null
    ),
    -- key_room: how many more jobs of its key may run; null = any number.
    candidate as materialized (
        select distinct on (c.id) c.*, case when c.key_concurrency is not null and c.job_key is not null
                   then c.key_concurrency - (
                       select count(*) from running
                       where running.subscription = c.name and running.job_key = c.job_key
                         and running.workspace_id is not distinct from c.workspace_id) end as key_room
        from locked as c order by c.id
    ),
    fitting as materialized (
        select c.*, case when shared then row_number() over (partition by c.workspace_id order by c.claim_at, c.id)
                   + (select count(*) from running where running.workspace_id is not distinct from c.workspace_id) end as turn,
               case when shared then hashtextextended(coalesce(c.workspace_id, ''), seed) end as lot
        from (select candidate.*, row_number() over (
                         partition by name, workspace_id, job_key order by claim_at, id) as of_key
              from candidate) as c
        where c.key_room is null or c.of_key <= c.key_room
    ),
    picked as materialized (
        select f.place, f.name, f.workspace_id, f.job_key
        from (select fitting.*, row_number() over (partition by name order by turn, lot, claim_at, id) as of_type
              from fitting) as f
        where f.of_type <= f.room
        order by f.turn, f.lot, f.claim_at, f.id limit p_wanted
    ),
    passed as materialized (
        select c.place from candidate as c
        where c.key_room <= (
                  select count(*) from picked
                  where picked.name = c.name and picked.job_key = c.job_key
                    and picked.workspace_id is not distinct from c.workspace_id)
          and not exists (select from picked where picked.place = c.place)
    ),
    set_aside as (
        update /*schema*/job as j set waits_for = 'key' from passed where j.ctid = passed.place
    )
    select array(select picked.place from picked),
           exists (select from passed) and (select count(*) from picked) < p_wanted and exists (
               select from locked as l group by l.lane, l.tenant, l.most having count(*) >= l.most)
    into places, cut;
end
$$;
