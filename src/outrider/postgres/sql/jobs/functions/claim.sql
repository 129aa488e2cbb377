-- claim: lease the next due jobs of these types to a worker, at most p_limit, and fewer if their payloads are large (lease).
-- Jobs whose lease has expired are reaped first.
--
-- Order:  by run_at, where one step of priority counts as much as a minute of waiting; then the older job.
-- p_queues: only of these queues; null = all. Jobs of a generation other than p_generation are left to its own workers while it has
--         any.
-- p_suspect: whether one job whose worker died may be among them. A worker runs one of those at a time, so that at most one
--         healthy job can be mistaken for the cause, and only once.
-- Tenants: if more is due than p_limit, tenants take turns (take_turns). The order above holds within one tenant.
-- Limits: the concurrency of a type over all workers, and of a key within a workspace. A job that must wait for its key is set
--         aside (waiting) until a claim finds room for it (admit).
-- Locks:  the limits of the types that have any; then the jobs, FOR UPDATE SKIP LOCKED.
-- Reads:  delivery by job_due: one look-up for each lane (generation, queue, priority, with or without a workspace) of each
--         type, then the jobs. At most 500 lanes of a type, because whoever enqueues can create any number. If there are more,
--         the session's next claim continues after them, 0.1 s later at most.
--         The CTEs are MATERIALIZED: inlined, a join may run one more than once, and each run would lock another p_limit jobs.
-- Returns the jobs in their order, then one row without a job: the seconds until there may be more (due_in; null = nothing waits;
--         1 = others hold what is due), and the worker's jobs that are to be cancelled (stop). With p_limit 0 only that row.
create or replace function /*schema*/claim(
    p_worker uuid, p_names text[], p_limit integer, p_generation bigint default 0, p_queues text[] default null,
    p_suspect boolean default true
) returns setof /*schema*/claimed
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
#variable_conflict use_column
declare
    last    /*schema*/claimed;
    due_in  double precision;
    stop    bigint[];
    moment  timestamptz;
    lapses  timestamptz;
    places  tid[];
    names   text[];
    limited boolean;
    lanes   record;
    chosen  bigint[] := '{}';
    held    boolean := false;
    wanted  integer := p_limit;
    limits  record;
    taken   integer := 0;
    filled  boolean := false;
    counted bigint;
    suspect boolean := false;
    reaped  integer;
    partly  boolean;
    -- By type, the lane at which the session's last claim stopped (see Reads).
    after   jsonb := coalesce(nullif(current_setting('outrider.lanes', true), ''), '{}');
begin
    perform /*schema*/sees_all();
    reaped := /*schema*/reap(p_names);
    select array_agg(s.name order by s.name), bool_or(s.concurrency is not null or s.key_concurrency is not null)
    into names, limited
    from /*schema*/subscription as s
    where s.name = any (p_names) and s.paused_at is null
      and not exists (select from /*schema*/setting as p where p.name = 'paused' and p.value <> 0);
    -- A type whose limits were removed may have jobs that still wait for their key.
    limited := limited or exists (select from /*schema*/delivery as d where d.subscription = any (names) and d.waiting);
    stop := array(select d.id from /*schema*/delivery as d
                            where d.locked_by = p_worker and d.status = 'in_flight' and d.cancelled_at is not null);
    if p_limit <= 0 then
        last.head := jsonb_build_object('stop', stop);
        return next last;
        return;
    end if;
    if limited then
        perform /*schema*/hold_limits(names);
        held := /*schema*/admit(names);
    end if;
    moment := clock_timestamp();

    lapses := (select min(next.lease_expires_at) + interval '10 milliseconds' from unnest(p_names) as n (name)
               cross join lateral (
                   select d.lease_expires_at from /*schema*/delivery as d
                   where d.subscription = n.name and d.status = 'in_flight'
                   order by d.lease_expires_at limit 1) as next);

    -- The lanes that hold pending jobs, by skipping from one to the next.
    with recursive lane as (
        select first.*, 1 as number from unnest(names) as n (name)
        cross join lateral (
            select d.subscription, d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id) as tenanted
            from /*schema*/delivery as d
            where d.subscription = n.name
              and (d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id))
                  > (coalesce((after -> n.name ->> 0)::bigint, -9223372036854775808), coalesce(after -> n.name ->> 1, ''),
                     coalesce((after -> n.name ->> 2)::smallint, 0), coalesce((after -> n.name ->> 3)::integer, 0))
              and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
            order by d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id) limit 1) as first
        union all
        select next.*, lane.number + 1 from lane
        cross join lateral (
            select d.subscription, d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id) as tenanted
            from /*schema*/delivery as d
            where d.subscription = lane.subscription
              and (d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id))
                  > (lane.generation, lane.queue, lane.priority, lane.tenanted)
              and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
            order by d.generation, d.queue, d.priority, num_nonnulls(d.workspace_id) limit 1) as next
        where lane.number < 500
    )
    select array_agg(lane.subscription) as subscription, array_agg(lane.generation) as generation,
           array_agg(lane.queue) as queue, array_agg(lane.priority) as priority,
           array_agg(lane.tenanted) as tenanted, count(*) as number, coalesce(max(lane.tenanted), 0) > 0 as shared,
           (select jsonb_object_agg(l.subscription, jsonb_build_array(l.generation, l.queue, l.priority, l.tenanted))
            from lane as l where l.number = 500) as stopped
    into lanes
    from lane
    where (p_queues is null or lane.queue = any (p_queues))
      and (lane.generation = p_generation
           or not /*schema*/has_workers(lane.subscription, lane.generation, lane.queue));
    partly := lanes.stopped is not null or after <> '{}';
    if partly then
        perform set_config('outrider.lanes', coalesce(lanes.stopped::text, ''), false);
    end if;

    if p_suspect then
        chosen := array(
            select picked.id
            from (select n.name from unnest(names) as n (name)
                  where not limited or /*schema*/room(n.name, null) > 0 offset 0) as n
            cross join lateral (
                select d.id from /*schema*/delivery as d
                where d.subscription = n.name and d.status = 'pending' and d.queue is not null and not d.waiting
                  and d.crashes > 0 and d.run_at <= moment
                  and (p_queues is null or d.queue = any (p_queues))
                  and (d.generation = p_generation or not /*schema*/has_workers(d.subscription, d.generation, d.queue))
                  and (not limited or /*schema*/room(d.subscription, d.job_key, d.workspace_id) > 0)
                order by d.run_at, d.id limit 1 for update skip locked) as picked
            limit 1);
        wanted := wanted - cardinality(chosen);
        suspect := chosen <> '{}';
    end if;
    if limited and wanted > 0 then
        select p.* into limits from /*schema*/pick_limited(
            chosen, lanes.subscription, lanes.generation, lanes.queue, lanes.priority, lanes.tenanted, wanted, moment) as p;
        chosen := chosen || limits.picked;
        due_in := case when limits.cut then 0 end;
        lanes.number := 0;
        lanes.shared := false;
    end if;
    if lanes.shared and wanted > 0 then
        places := /*schema*/take_turns(
            lanes.subscription, lanes.generation, lanes.queue, lanes.priority, lanes.tenanted, wanted, moment);
        if places <> '{}' then
            return query select l.* from /*schema*/lease(places, p_worker, moment) as l;
            get diagnostics taken = row_count;
            filled := taken < cardinality(places);
        end if;
    end if;
    -- A second pass if others locked some of the jobs that were counted: then any due job of these lanes.
    for pass in 1..2 loop
        wanted := p_limit - taken - cardinality(chosen);
        exit when filled or wanted + cardinality(chosen) <= 0 or (lanes.number = 0 and cardinality(chosen) = 0);
        with lane as materialized (
            select l.* from unnest(lanes.subscription, lanes.generation, lanes.queue, lanes.priority, lanes.tenanted)
                as l (subscription, generation, queue, priority, tenanted)
            where lanes.number > 0
        ),
        -- How many of the next jobs are of each lane. Without locks, because it reads more jobs than it takes.
        share as materialized (
            select next.subscription, next.generation, next.queue, next.priority, next.tenanted, count(*) as jobs
            from (select lane.*, d.run_at from lane
                  cross join lateral (
                      select d.run_at, d.id from /*schema*/delivery as d
                      where d.subscription = lane.subscription and d.generation = lane.generation
                        and d.queue = lane.queue and d.priority = lane.priority
                        and num_nonnulls(d.workspace_id) = lane.tenanted
                        and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
                        and d.run_at <= moment
                      order by d.run_at, d.id limit wanted) as d
                  where lanes.number > 1 and pass = 1
                  order by d.run_at - lane.priority * interval '1 minute', d.run_at, d.id limit wanted) as next
            group by 1, 2, 3, 4, 5
            union all
            select lane.*, wanted from lane where lanes.number = 1 or pass = 2
        ),
        -- By ctid, which does not change while the rows are locked.
        q as materialized (
            (select picked.ctid as place from share
             cross join lateral (
                 select d.ctid, d.run_at, d.id from /*schema*/delivery as d
                 where d.subscription = share.subscription and d.generation = share.generation
                   and d.queue = share.queue and d.priority = share.priority
                   and num_nonnulls(d.workspace_id) = share.tenanted
                   and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
                   and d.run_at <= moment
                 order by d.run_at, d.id limit share.jobs for update skip locked) as picked
             order by picked.run_at - share.priority * interval '1 minute', picked.run_at, picked.id limit wanted)
            union all
            select d.ctid from /*schema*/delivery as d where d.id = any (chosen)
        )
        select array_agg(q.place) into places from q;
        return query select l.* from /*schema*/lease(places, p_worker, moment) as l;
        get diagnostics counted = row_count;
        taken := taken + counted;
        filled := coalesce(counted < cardinality(places), false);
        chosen := '{}';
        exit when lanes.number <= 1 or taken = p_limit or filled;
    end loop;

    if taken = p_limit or filled then
        due_in := 0;
    elsif due_in is null then
        due_in := extract(epoch from least(
            (select min(next.run_at)
             from unnest(lanes.subscription, lanes.generation, lanes.queue, lanes.priority, lanes.tenanted)
                 as l (subscription, generation, queue, priority, tenanted)
             cross join lateral (
                 select d.run_at from /*schema*/delivery as d
                 where d.subscription = l.subscription and d.generation = l.generation and d.queue = l.queue
                   and d.priority = l.priority and num_nonnulls(d.workspace_id) = l.tenanted
                   and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0 and d.run_at > moment
                 order by d.run_at limit 1) as next),
            (select min(next.run_at) from unnest(names) as n (name)
             cross join lateral (
                 select d.run_at from /*schema*/delivery as d
                 where d.subscription = n.name and d.status = 'pending' and d.queue is not null and not d.waiting
                   and d.crashes > 0 and d.run_at > moment
                 order by d.run_at limit 1) as next),
            lapses) - moment);
        if due_in < 0 then
            due_in := 0;
        end if;
        -- A job is due and still there: others have it locked. If they do not take it (they die or roll back), nobody is notified.
        if (due_in <= 1) is not true and (
            held
            or exists (
                select from unnest(lanes.subscription, lanes.generation, lanes.queue, lanes.priority, lanes.tenanted)
                    as l (subscription, generation, queue, priority, tenanted)
                cross join lateral (
                    select from /*schema*/delivery as d
                    where d.subscription = l.subscription and d.generation = l.generation and d.queue = l.queue
                      and d.priority = l.priority and num_nonnulls(d.workspace_id) = l.tenanted
                      and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
                      and d.run_at <= moment
                    order by d.run_at limit 1) as held
                where not limited or /*schema*/room(l.subscription, null) > 0)
            or p_suspect and not suspect and exists (
                select from unnest(names) as n (name)
                cross join lateral (
                    select from /*schema*/delivery as d
                    where d.subscription = n.name and d.status = 'pending' and d.queue is not null and not d.waiting
                      and d.crashes > 0 and d.run_at <= moment
                      and (p_queues is null or d.queue = any (p_queues))
                      and (d.generation = p_generation or not /*schema*/has_workers(d.subscription, d.generation, d.queue))
                      and (not limited or 0 < /*schema*/room(d.subscription, d.job_key, d.workspace_id))
                    order by d.run_at, d.id limit 1) as held)) then
            due_in := 1;
            perform /*schema*/close_kept(
                lanes.subscription, lanes.generation, lanes.queue, lanes.priority, lanes.tenanted, moment);
        end if;
    end if;
    if partly then
        due_in := least(due_in, 0.1);
    end if;
    if limited and taken = 0 and reaped = 0 then
        -- Only the locks on the limits were written, and others wait for them: do not wait for the disk.
        perform set_config('synchronous_commit', 'off', true);
    end if;
    last.head := jsonb_build_object(
        'stop', stop, 'due_in', due_in, 'single', not limited and lanes.number = 1 and not lanes.shared and not partly);
    return next last;
end
$$;
