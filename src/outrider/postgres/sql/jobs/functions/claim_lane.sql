-- claim_lane: lease the next jobs of one lane whose claim_at is not before p_since, the claim_at of a job that a claim returned.
-- It looks at nothing else, neither other lanes nor expired leases, so the worker must call claim now and then. As it starts at
-- p_since, it skips the dead rows of earlier jobs, which an old snapshot may keep for long; a claim reads all of them.
-- Only for a type without limits and for jobs without a workspace (tenants take turns). Returns nothing while the type is paused.
-- Locks:  the jobs, FOR UPDATE SKIP LOCKED.
-- Returns the jobs in their order, and no other row.
create or replace function /*schema*/claim_lane(
    p_worker uuid, p_subscription text, p_generation bigint, p_queue text, p_since timestamptz, p_limit integer
) returns setof /*schema*/claimed
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
declare
    moment timestamptz := clock_timestamp();
    places tid[];
begin
    perform /*schema*/sees_all();
    if not exists (select from /*schema*/subscription as s
                   where s.name = p_subscription and s.paused_at is null and s.concurrency is null
                     and s.key_concurrency is null)
       or exists (select from /*schema*/setting as p where p.name = 'paused' and p.value <> 0) then
        return;
    end if;
    places := array(
        select j.ctid from /*schema*/job as j
        where /*schema*/in_lane(j, row(p_subscription, p_generation, p_queue, 0)::/*schema*/lane)
          and /*schema*/claim_at(j) >= p_since at time zone 'UTC'
        order by /*schema*/claim_at(j), j.id limit p_limit for update skip locked);
    if places <> '{}' then
        return query select l.* from /*schema*/lease(places, p_worker, moment) as l;
    end if;
end
$$;
