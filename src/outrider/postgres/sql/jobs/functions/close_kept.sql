-- close_kept: mark due jobs that open transactions keep (on_conflict keep), and that cannot be claimed before these end, as closed.
-- From then on an enqueue with the same unique key creates another job, so the due one does not wait for later transactions too.
-- Locks:  those jobs, SKIP LOCKED.
-- Reads:  the first 100 due jobs of each lane.
create or replace function /*schema*/close_kept(
    p_subscriptions text[], p_generations bigint[], p_queues text[], p_priorities smallint[], p_tenanted integer[],
    p_moment timestamptz
) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
declare
    found bigint[];
    free  bigint[];
begin
    found := array(
        select d.id from unnest(p_subscriptions, p_generations, p_queues, p_priorities, p_tenanted)
            as l (subscription, generation, queue, priority, tenanted)
        cross join lateral (
            select d.id, d.unique_key, d.closed from /*schema*/delivery as d
            where d.subscription = l.subscription and d.generation = l.generation and d.queue = l.queue
              and d.priority = l.priority and num_nonnulls(d.workspace_id) = l.tenanted
              and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
              and d.run_at <= p_moment
            order by d.run_at, d.id limit 100) as d
        where d.unique_key is not null and not d.closed);
    if found = '{}' then
        return;
    end if;
    -- A transaction that keeps a job holds FOR KEY SHARE: we can update the row, but not lock it FOR UPDATE.
    found := array(select d.id from /*schema*/delivery as d
                   where d.id = any (found) and d.status = 'pending' for no key update skip locked);
    free := array(select d.id from /*schema*/delivery as d where d.id = any (found) for update skip locked);
    update /*schema*/delivery as d set closed = true where d.id = any (found) and d.id <> all (free);
end
$$;
