-- replace_closed: give the closed jobs of a unique key what its open one has: its payload, and what belongs to that. For enqueue_one,
-- which has just written the open one with replace or debounce. The closed ones still run, after the transactions that keep them, but
-- not with an older payload than a job that ran before them.
--
-- Runs with the rights of its owner, as enqueue_onto.
-- Locks:  the closed jobs, waiting for whoever is about to change them. Not against a transaction that keeps one (FOR KEY SHARE).
create or replace function /*schema*/replace_closed(p_job_type text, p_unique_key text, p_workspace_id text) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    if (p_workspace_id = nullif(current_setting('app.workspace_id', true), '')) is not true
       and not /*schema*/sees_every_tenant(coalesce(nullif(current_setting('role'), 'none'), session_user)) then
        raise 'row-level security: % is of another workspace than app.workspace_id', quote_nullable(left(p_job_type, 100))
            using errcode = 'insufficient_privilege';
    end if;
    update /*schema*/job as d
    set payload = o.payload, event_version = o.event_version, source = o.source, trace_context = o.trace_context,
        generation = o.generation, queue = o.queue, priority = o.priority, job_key = o.job_key,
        waits_for = nullif(d.waits_for, 'key'), attempts = 0, crashes = 0
    from /*schema*/job as o
    where o.subscription = p_job_type and coalesce(o.workspace_id, '') = coalesce(p_workspace_id, '')
      and o.unique_key = p_unique_key and o.status = 'pending' and o.seq is null and not o.closed
      and d.subscription = p_job_type and coalesce(d.workspace_id, '') = coalesce(p_workspace_id, '')
      and d.unique_key = p_unique_key and d.status = 'pending' and d.seq is null and d.closed;
end
$$;
