-- take_turns: if more than p_wanted jobs of these lanes are due, pick p_wanted so that every tenant has its turn; else null.
-- First comes the first job of each tenant, then the second, and so on; a running job is a turn already taken. Within a tenant the
-- order is claim's. Jobs without a workspace are one more tenant.
-- Locks:  the jobs, FOR UPDATE SKIP LOCKED.
-- Reads:  delivery by job_due for jobs without a workspace, by job_turn for the tenants (see tenants_due), of each about as many
--         jobs as it may get; and up to 1,000 running jobs.
-- Returns the places (ctid) of the jobs.
create or replace function /*schema*/take_turns(
    p_subscriptions text[], p_generations bigint[], p_queues text[], p_priorities smallint[], p_tenanted integer[],
    p_wanted integer, p_moment timestamptz
) returns tid[]
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
            select from unnest(p_subscriptions, p_generations, p_queues, p_priorities, p_tenanted)
                as l (subscription, generation, queue, priority, tenanted)
            cross join lateral (
                select from /*schema*/delivery as d
                where d.subscription = l.subscription and d.generation = l.generation and d.queue = l.queue
                  and d.priority = l.priority and num_nonnulls(d.workspace_id) = l.tenanted
                  and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
                  and d.run_at <= p_moment
                order by d.run_at limit p_wanted + 1) as d
            limit p_wanted + 1) as due) <= p_wanted then
        return null;
    end if;
    return array(
        with own as materialized (
            select l.subscription, l.generation, l.queue, l.priority
            from unnest(p_subscriptions, p_generations, p_queues, p_priorities, p_tenanted)
                as l (subscription, generation, queue, priority, tenanted)
            where l.tenanted = 0
        ),
        shared as materialized (
            select t.* from /*schema*/tenants_due(
                array(select l.name from unnest(p_subscriptions, p_tenanted) with ordinality as l (name, tenanted, place)
                      where l.tenanted = 1 order by l.place),
                array(select l.generation from unnest(p_generations, p_tenanted) with ordinality as l (generation, tenanted, place)
                      where l.tenanted = 1 order by l.place),
                array(select l.queue from unnest(p_queues, p_tenanted) with ordinality as l (queue, tenanted, place)
                      where l.tenanted = 1 order by l.place),
                array(select l.priority from unnest(p_priorities, p_tenanted) with ordinality as l (priority, tenanted, place)
                      where l.tenanted = 1 order by l.place),
                least(64, 2 * p_wanted + 6), p_moment) as t
        ),
        -- Of each tenant about twice its share, because some have fewer; claim fills what is left.
        most as materialized (
            select least(p_wanted, 1 + ceil(2.0 * p_wanted / greatest(1, count(distinct shared.tenant)))::integer) as jobs
            from shared
        ),
        running as materialized (
            select r.tenant, count(*) as jobs
            from (select hashtextextended(d.workspace_id, 0) as tenant from /*schema*/delivery as d
                  where d.subscription = any (p_subscriptions) and d.status = 'in_flight' limit 1000) as r
            group by r.tenant
        ),
        next as materialized (
            select own.*, null::bigint as tenant, d.run_at, d.id from own cross join most
            cross join lateral (
                select d.run_at, d.id from /*schema*/delivery as d
                where d.subscription = own.subscription and d.generation = own.generation and d.queue = own.queue
                  and d.priority = own.priority and num_nonnulls(d.workspace_id) = 0
                  and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
                  and d.run_at <= p_moment
                order by d.run_at, d.id limit most.jobs) as d
            union all
            select shared.*, d.run_at, d.id from shared cross join most
            cross join lateral (
                select d.run_at, d.id from /*schema*/delivery as d
                where d.subscription = shared.subscription and d.generation = shared.generation and d.queue = shared.queue
                  and hashtextextended(d.workspace_id, 0) = shared.tenant and d.priority = shared.priority
                  and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
                  and d.workspace_id is not null and d.run_at <= p_moment
                order by d.run_at, d.id limit most.jobs) as d
        ),
        -- How many jobs of each lane have their turn. Without locks, because it reads more jobs than it takes.
        share as materialized (
            select turn.subscription, turn.generation, turn.queue, turn.priority, turn.tenant, count(*) as jobs
            from (select next.*, coalesce(running.jobs, 0) + row_number() over (
                             partition by next.tenant
                             order by next.run_at - next.priority * interval '1 minute', next.run_at, next.id) as number
                  from next left join running on running.tenant is not distinct from next.tenant
                  -- Ties are broken at random, anew each time.
                  order by number, hashint8extended(coalesce(next.tenant, 0), seed), next.run_at, next.id
                  limit p_wanted) as turn
            group by 1, 2, 3, 4, 5
        )
        select picked.ctid from share
        cross join lateral (
            select d.ctid from /*schema*/delivery as d
            where d.subscription = share.subscription and d.generation = share.generation and d.queue = share.queue
              and d.priority = share.priority and num_nonnulls(d.workspace_id) = 0
              and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0 and d.run_at <= p_moment
            order by d.run_at, d.id limit share.jobs for update skip locked) as picked
        where share.tenant is null
        union all
        select picked.ctid from share
        cross join lateral (
            select d.ctid from /*schema*/delivery as d
            where d.subscription = share.subscription and d.generation = share.generation and d.queue = share.queue
              and hashtextextended(d.workspace_id, 0) = share.tenant and d.priority = share.priority
              and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
              and d.workspace_id is not null and d.run_at <= p_moment
            order by d.run_at, d.id limit share.jobs for update skip locked) as picked
        where share.tenant is not null);
end
$$;
