-- admit: the next job that waits for its key, of its workspace, may be claimed. The caller holds the lock of its type
-- (hold_limits).
-- Locks:  that job; one that somebody is about to change is passed over. Not one that an enqueue keeps: it could come next, and
--         nobody would ask again.
-- Reads:  delivery by job_waiting: the first of each priority, however many wait.
create or replace function /*schema*/admit(p_subscription text, p_key text, p_workspace_id text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
as $$
declare
    next   /*schema*/delivery;
    tenant text := coalesce(p_workspace_id, '');
begin
    with recursive step as (
        (select w.priority from /*schema*/delivery as w
         where w.subscription = p_subscription and coalesce(w.workspace_id, '') = tenant and w.job_key = p_key
               and w.waiting
         order by w.priority limit 1)
        union all
        select above.priority from step
        cross join lateral (
            select w.priority from /*schema*/delivery as w
            where w.subscription = p_subscription and coalesce(w.workspace_id, '') = tenant and w.job_key = p_key
               and w.waiting and w.priority > step.priority
            order by w.priority limit 1) as above
    ),
    first as materialized (
        select w.id from step
        cross join lateral (
            select w.id, w.run_at from /*schema*/delivery as w
            where w.subscription = p_subscription and coalesce(w.workspace_id, '') = tenant and w.job_key = p_key
               and w.waiting and w.priority = step.priority
            order by w.run_at, w.id limit 1 for no key update skip locked) as w
        order by w.run_at - step.priority * interval '1 minute', w.run_at, w.id limit 1
    )
    update /*schema*/delivery as d set waiting = false
    from first where d.id = first.id
    returning d.* into next;
    if found then
        perform pg_notify(case next.generation when 0 then 'outbox_default' else 'outbox_gen_' || next.generation end,
                          p_subscription);
    end if;
end
$$;
