-- lanes: the lanes of these types that hold claimable jobs, as far as this worker serves them.
-- A lane is a type, a generation, a queue, and whether its jobs have a workspace.
-- Reads:  job_ready, skipping from one lane to the next. At most 500 lanes of a type, because whoever enqueues can create any
--         number. If there are more, the session's next claim continues after them (partly).
create or replace function /*schema*/lanes(
    p_names text[], p_generation bigint, p_queues text[], p_strict boolean, out lanes /*schema*/lane[], out partly boolean
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
declare
    -- By type, the lane at which the session's last claim stopped.
    after   jsonb := coalesce(nullif(current_setting('outrider.lanes', true), ''), '{}');
    stopped jsonb;
begin
    with recursive lane as (
        select first.*, 1 as number from unnest(p_names) as n (name)
        cross join lateral (
            select j.subscription, j.generation, j.queue, num_nonnulls(j.workspace_id) as tenanted
            from /*schema*/job as j
            where j.subscription = n.name and /*schema*/claimable(j)
              and (j.generation, j.queue, num_nonnulls(j.workspace_id))
                  > (coalesce((after -> n.name ->> 0)::bigint, -9223372036854775808), coalesce(after -> n.name ->> 1, ''),
                     coalesce((after -> n.name ->> 2)::integer, 0))
            order by j.generation, j.queue, num_nonnulls(j.workspace_id) limit 1) as first
        union all
        select next.*, lane.number + 1 from lane
        cross join lateral (
            select j.subscription, j.generation, j.queue, num_nonnulls(j.workspace_id) as tenanted
            from /*schema*/job as j
            where j.subscription = lane.subscription and /*schema*/claimable(j)
              and (j.generation, j.queue, num_nonnulls(j.workspace_id)) > (lane.generation, lane.queue, lane.tenanted)
            order by j.generation, j.queue, num_nonnulls(j.workspace_id) limit 1) as next
        where lane.number < 500
    )
    select coalesce(array_agg(row(l.subscription, l.generation, l.queue, l.tenanted)::/*schema*/lane) filter (
               where (p_queues is null or l.queue = any (p_queues))
                 and (l.generation = p_generation
                      or not p_strict and not /*schema*/has_workers(l.subscription, l.generation, l.queue))), '{}'),
           jsonb_object_agg(l.subscription, jsonb_build_array(l.generation, l.queue, l.tenanted)) filter (where l.number = 500)
    into lanes, stopped
    from lane as l;
    partly := stopped is not null or after <> '{}';
    if partly then
        perform set_config('outrider.lanes', coalesce(stopped::text, ''), false);
    end if;
end
$$;
