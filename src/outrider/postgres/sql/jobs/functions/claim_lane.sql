-- claim_lane: more of the same, while there is more than enough: the next jobs of one lane that are not due before p_since, as
-- a claim has returned them. Nothing else is looked at, neither other lanes nor what ran out: whoever uses it must claim
-- now and then. It does not pass what was done before, which an old snapshot may keep for long: then a claim reads all of it.
-- For a type without limits, and jobs without a workspace: tenants take turns. None if it is paused. Back: jobs, in their
-- order, and no other row.
-- Locks:  the jobs, FOR UPDATE SKIP LOCKED.
create or replace function /*schema*/claim_lane(
    p_worker uuid, p_subscription text, p_generation bigint, p_queue text, p_priority integer, p_since timestamptz,
    p_limit integer
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
        select d.ctid from /*schema*/delivery as d
        where d.subscription = p_subscription and d.generation = p_generation and d.queue = p_queue
          and d.priority = p_priority and num_nonnulls(d.workspace_id) = 0
          and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
          and d.run_at >= p_since and d.run_at <= moment
        order by d.run_at, d.id limit p_limit for update skip locked);
    if places <> '{}' then
        return query select l.* from /*schema*/lease(places, p_worker, moment) as l;
    end if;
end
$$;
