-- pick: the next p_wanted jobs of these lanes, for types without limits. If there are tenants, they take turns.
-- Locks:  the jobs, FOR UPDATE SKIP LOCKED.
-- Reads:  job_ready; of several lanes, p_wanted jobs of each.
--         The CTEs are MATERIALIZED: inlined, a join may run one more than once, and each run would lock another p_wanted jobs.
-- Returns the places (ctid) of the jobs, which do not change while they are locked.
create or replace function /*schema*/pick(p_lanes /*schema*/lane[], p_wanted integer) returns tid[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
declare
    lanes  integer := cardinality(p_lanes);
    places tid[] := '{}';
    wanted bigint := p_wanted;
    number bigint[];
begin
    if lanes > 0 and 1 = any (array(select l.tenanted from unnest(p_lanes) as l)) then
        places := /*schema*/take_turns(p_lanes, p_wanted);
    end if;
    if lanes > 1 and places = '{}' then
        -- How many of the next jobs are of each lane. Without locks, because it reads more jobs than it takes.
        with next as (
            select l.lane from unnest(p_lanes) with ordinality as l (subscription, generation, queue, tenanted, lane)
            cross join lateral (
                select /*schema*/claim_at(j), j.id from /*schema*/job as j
                where /*schema*/in_lane(j, p_lanes[l.lane]) order by /*schema*/claim_at(j), j.id limit p_wanted) as j
            order by j.claim_at, j.id limit p_wanted
        )
        select array(select count(next.lane) from generate_series(1, lanes) as l (lane)
                     left join next on next.lane = l.lane group by l.lane order by l.lane),
               (select count(*) from next)
        into number, wanted;
        with picked as materialized (
            select picked.place from unnest(number) with ordinality as share (jobs, lane)
            cross join lateral (
                select j.ctid as place from /*schema*/job as j
                where /*schema*/in_lane(j, p_lanes[share.lane])
                order by /*schema*/claim_at(j), j.id limit share.jobs for update skip locked) as picked
            where share.jobs > 0
        )
        select array_agg(picked.place) into places from picked;
        places := coalesce(places, '{}');
    end if;
    -- The only lane; or whatever is next, if others have locked some of those above.
    if lanes > 0 and cardinality(places) < wanted then
        wanted := wanted - cardinality(places);
        places := places || array(
            select picked.place from unnest(p_lanes) as l
            cross join lateral (
                select j.ctid as place, /*schema*/claim_at(j), j.id from /*schema*/job as j
                where /*schema*/in_lane(j, l) and j.ctid <> all (places)
                order by /*schema*/claim_at(j), j.id limit wanted for update skip locked) as picked
            order by picked.claim_at, picked.id limit wanted);
    end if;
    return places;
end
$$;
