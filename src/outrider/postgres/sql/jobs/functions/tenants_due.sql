-- tenants_due: up to p_most tenants that have a job due in these types, generations, queues and priorities, with their lanes.
-- It skips from one tenant to the next, starting at a random place and wrapping around, so that none is left out for long, however
-- many there are. If that finds fewer than p_most, because many tenants have nothing due yet, it adds the tenants of the jobs that
-- became due last: there it finds tenants with few jobs.
-- A tenant is the hash of its workspace, so that places are random even if names are not. Two with the same hash share their turns.
-- Reads:  delivery by job_due, the last 16 jobs of each lane; by job_turn, one look-up for each lane (tenant, priority), up to 8
--         lanes of a tenant and 400 in all. Locks nothing.
create or replace function /*schema*/tenants_due(
    p_subscriptions text[], p_generations bigint[], p_queues text[], p_priorities smallint[], p_most integer,
    p_moment timestamptz
) returns table (subscription text, generation bigint, queue text, priority smallint, tenant bigint)
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
        select g.subscription, g.generation, g.queue, start as tenant, (-32768)::smallint as priority,
               false as due, false as wrapped, null::bigint as newest, 0 as tenants, 0 as looked, 0 as lanes
        from (select distinct u.* from unnest(p_subscriptions, p_generations, p_queues)
                  as u (subscription, generation, queue)) as g
        union all
        select step.subscription, step.generation, step.queue, next.tenant, next.priority, next.run_at <= p_moment,
               next.wrapped, case when next.run_at <= p_moment then next.tenant else step.newest end,
               step.tenants + (next.run_at <= p_moment and next.tenant is distinct from step.newest)::integer,
               step.looked + 1, case when next.tenant = step.tenant then step.lanes + 1 else 1 end
        from step
        cross join lateral (
            (select hashtextextended(d.workspace_id, 0) as tenant, d.priority, d.run_at, step.wrapped as wrapped
             from /*schema*/delivery as d
             where d.subscription = step.subscription and d.generation = step.generation and d.queue = step.queue
               and (hashtextextended(d.workspace_id, 0), d.priority)
                   > (step.tenant, case when step.lanes < 8 then step.priority else 32767::smallint end)
               and (not step.wrapped or hashtextextended(d.workspace_id, 0) < start)
               and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
               and d.workspace_id is not null
             order by hashtextextended(d.workspace_id, 0), d.priority, d.run_at, d.id limit 1)
            union all
            (select hashtextextended(d.workspace_id, 0), d.priority, d.run_at, true
             from /*schema*/delivery as d
             where not step.wrapped
               and d.subscription = step.subscription and d.generation = step.generation and d.queue = step.queue
               and hashtextextended(d.workspace_id, 0) < start
               and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
               and d.workspace_id is not null
             order by hashtextextended(d.workspace_id, 0), d.priority, d.run_at, d.id limit 1)
            limit 1) as next
        where step.tenants < p_most and step.looked < 400
    )
    select step.subscription, step.generation, step.queue, step.priority, step.tenant from step where step.due
    union
    select l.subscription, l.generation, l.queue, l.priority, hashtextextended(d.workspace_id, 0)
    from unnest(p_subscriptions, p_generations, p_queues, p_priorities) as l (subscription, generation, queue, priority)
    cross join lateral (
        select d.workspace_id from /*schema*/delivery as d
        where d.subscription = l.subscription and d.generation = l.generation and d.queue = l.queue
          and d.priority = l.priority and num_nonnulls(d.workspace_id) = 1
          and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0 and d.run_at <= p_moment
        order by d.run_at desc, d.id desc limit 16) as d
    where (select coalesce(max(step.tenants), 0) from step) < p_most;
end
$$;
