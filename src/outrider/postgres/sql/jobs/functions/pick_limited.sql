-- pick_limited: the next jobs of these lanes that their limits leave room for. The caller holds the limits of the types.
-- A job whose key has no room is set aside (waiting) until a job of that key has ended, so that no later claim reads it again.
-- Tenants take turns, as in take_turns.
-- p_chosen: the jobs that this claim has picked already; they count against the limits.
-- Locks:  the candidates and the jobs that it sets aside, FOR UPDATE SKIP LOCKED.
-- Reads:  delivery by job_due and job_turn. With a limit per key, 1,000 jobs of a lane and 100 of a tenant's lane, or p_wanted if
--         that is more.
-- Returns picked: their ids. cut: so many jobs of a lane were read and room is left, so the next claim should come at once.
create or replace function /*schema*/pick_limited(
    p_chosen bigint[], p_subscriptions text[], p_generations bigint[], p_queues text[], p_priorities smallint[],
    p_tenanted integer[], p_wanted integer, p_moment timestamptz, out picked bigint[], out cut boolean
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    lane     record;
    job      record;
    places   jsonb := '{}';
    keys     jsonb := '{}';
    spare    jsonb;
    key      text;
    room     bigint;
    mine     bigint;
    number   integer;
    passed   bigint[] := '{}';
    best     record;
    candidates bigint[] := '{}';
    seed     bigint := (random() * 4294967296)::bigint;
begin
    picked := '{}';
    cut := false;
    -- places: how many more jobs of each type may run, after those that this claim has picked.
    for lane in
        select n.name, s.concurrency, s.key_concurrency,
               s.concurrency - (select count(*) from /*schema*/delivery as d
                                where d.subscription = n.name and d.status = 'in_flight')
                             - (select count(*) from /*schema*/delivery as d
                                where d.id = any (p_chosen) and d.subscription = n.name) as room
        from (select distinct u.name from unnest(p_subscriptions) as u (name)) as n
        join /*schema*/subscription as s on s.name = n.name
    loop
        places := places || jsonb_build_object(lane.name, least(coalesce(lane.room, p_wanted), p_wanted));
        -- keys: the same by key, for the keys of running jobs. One scan of the running jobs, because a look-up by key would also
        -- read all jobs that wait for it.
        if lane.key_concurrency is not null then
            keys := keys || coalesce((
                select jsonb_object_agg(lane.name || ' ' || taken.key, lane.key_concurrency - taken.number)
                from (select each.key, count(*) as number
                      from (select length(d.job_key) || ':' || d.job_key || coalesce(d.workspace_id, '') as key
                            from /*schema*/delivery as d
                            where d.subscription = lane.name and d.status = 'in_flight'
                            union all
                            select length(d.job_key) || ':' || d.job_key || coalesce(d.workspace_id, '')
                            from /*schema*/delivery as d
                            where d.id = any (p_chosen) and d.subscription = lane.name) as each
                      where each.key is not null
                      group by each.key) as taken), '{}');
        end if;
    end loop;
    for lane in
        -- First the tenants one by one, then all together, for those that tenants_due did not return.
        with own as materialized (
            select l.* from unnest(p_subscriptions, p_generations, p_queues, p_priorities, p_tenanted)
                as l (subscription, generation, queue, priority, tenanted)
        ),
        shared as materialized (
            select t.* from (
                select array_agg(own.subscription) as names, array_agg(own.generation) as generations,
                       array_agg(own.queue) as queues, array_agg(own.priority) as priorities
                from own where own.tenanted = 1) as g
            cross join lateral /*schema*/tenants_due(
                g.names, g.generations, g.queues, g.priorities, least(64, 2 * p_wanted + 6), p_moment) as t
            where g.names is not null
        ),
        number as materialized (
            select count(distinct shared.tenant) as tenants from shared
        )
        select l.subscription, l.generation, l.queue, l.priority, l.tenanted, l.tenant, s.key_concurrency, number.tenants
        from (select own.subscription, own.generation, own.queue, own.priority, own.tenanted, null::bigint as tenant from own
              union all
              select shared.subscription, shared.generation, shared.queue, shared.priority, 1, shared.tenant from shared) as l
        join /*schema*/subscription as s on s.name = l.subscription
        cross join number
        order by l.tenant is null
    loop
        room := (places ->> lane.subscription)::bigint;
        if room <= 0 then
            continue;
        end if;
        if lane.tenant is not null and lane.key_concurrency is null then
            candidates := candidates || array(
                select d.id from /*schema*/delivery as d
                where d.subscription = lane.subscription and d.generation = lane.generation and d.queue = lane.queue
                  and hashtextextended(d.workspace_id, 0) = lane.tenant and d.priority = lane.priority
                  and d.status = 'pending' and d.queue is not null and not d.waiting
                  and d.crashes = 0 and d.workspace_id is not null and d.run_at <= p_moment
                order by d.run_at, d.id limit least(room, 1 + ceil(2.0 * room / lane.tenants)) for update skip locked);
            continue;
        end if;
        if lane.key_concurrency is null then
            candidates := candidates || array(
                select d.id from /*schema*/delivery as d
                where d.subscription = lane.subscription and d.generation = lane.generation and d.queue = lane.queue
                  and d.priority = lane.priority and num_nonnulls(d.workspace_id) = lane.tenanted
                  and d.status = 'pending' and d.queue is not null and not d.waiting
                  and d.crashes = 0 and d.run_at <= p_moment
                order by d.run_at, d.id limit room for update skip locked);
            continue;
        end if;
        -- Each lane may fill the room of a key by itself. The choice between lanes comes below.
        spare := '{}';
        number := 0;
        for job in
            select own.* from (
             select d.id, d.job_key, d.workspace_id from /*schema*/delivery as d
             where lane.tenant is null
               and d.subscription = lane.subscription and d.generation = lane.generation and d.queue = lane.queue
               and d.priority = lane.priority and num_nonnulls(d.workspace_id) = lane.tenanted
               and d.status = 'pending' and d.queue is not null and not d.waiting
               and d.crashes = 0 and d.run_at <= p_moment
             order by d.run_at, d.id limit greatest(1000, p_wanted) for update skip locked) as own
            union all
            select turn.* from (
             select d.id, d.job_key, d.workspace_id from /*schema*/delivery as d
             where lane.tenant is not null
               and d.subscription = lane.subscription and d.generation = lane.generation and d.queue = lane.queue
               and hashtextextended(d.workspace_id, 0) = lane.tenant and d.priority = lane.priority
               and d.status = 'pending' and d.queue is not null and not d.waiting
               and d.crashes = 0 and d.workspace_id is not null and d.run_at <= p_moment
             order by d.run_at, d.id limit greatest(100, p_wanted) for update skip locked) as turn
        loop
            exit when room <= 0;
            number := number + 1;
            if job.job_key is not null then
                key := lane.subscription || ' ' || length(job.job_key) || ':' || job.job_key || coalesce(job.workspace_id, '');
                mine := coalesce((spare ->> key)::bigint, (keys ->> key)::bigint, lane.key_concurrency);
                if mine <= 0 then
                    passed := passed || job.id;
                    continue;
                end if;
                spare := spare || jsonb_build_object(key, mine - 1);
            end if;
            room := room - 1;
            candidates := candidates || job.id;
        end loop;
        cut := cut or room > 0 and number = greatest(case when lane.tenant is null then 1000 else 100 end, p_wanted);
    end loop;

    -- The first candidates in claim's order, and of each type and key no more than it has room for.
    for best in
        with running as materialized (
            select d.workspace_id, count(*) as jobs from /*schema*/delivery as d
            where 1 = any (p_tenanted) and d.subscription = any (p_subscriptions) and d.status = 'in_flight'
            group by d.workspace_id
        )
        select d.id, d.subscription, s.key_concurrency,
               case when s.key_concurrency is not null then
                   d.subscription || ' ' || length(d.job_key) || ':' || d.job_key || coalesce(d.workspace_id, '') end as key
        from /*schema*/delivery as d join /*schema*/subscription as s on s.name = d.subscription
        left join running on running.workspace_id is not distinct from d.workspace_id
        where d.id = any (candidates)
        order by case when 1 = any (p_tenanted) then coalesce(running.jobs, 0) + row_number() over (
                     partition by d.workspace_id
                     order by d.run_at - d.priority * interval '1 minute', d.run_at, d.id) end,
                 case when 1 = any (p_tenanted) then hashtextextended(coalesce(d.workspace_id, ''), seed) end,
                 d.run_at - d.priority * interval '1 minute', d.run_at, d.id
    loop
        exit when cardinality(picked) >= p_wanted;
        continue when (places ->> best.subscription)::bigint <= 0;
        if (keys ->> best.key)::bigint <= 0 then
            passed := passed || best.id;
            continue;
        end if;
        picked := picked || best.id;
        places := jsonb_set(places, array[best.subscription], to_jsonb((places ->> best.subscription)::bigint - 1));
        if best.key is not null then
            keys := keys || jsonb_build_object(
                best.key, coalesce((keys ->> best.key)::bigint, best.key_concurrency) - 1);
        end if;
    end loop;
    update /*schema*/delivery as d set waiting = true where d.id = any (passed);
end
$$;
