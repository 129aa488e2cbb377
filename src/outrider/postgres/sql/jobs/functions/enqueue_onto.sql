-- enqueue_onto: what a job comes to when a pending one of its type has its unique key: see enqueue_one, which calls it after
-- its own insert has met that one. Nothing comes back when the other was claimed in between.
--
-- Runs with the rights of its owner: whoever enqueues needs no right to read or change what is owed. Only a pending job with
-- just this type, workspace and unique key is ever touched, and only as another enqueue of it may.
-- Locks:  that job, waiting for whoever is about to change it.
create or replace function /*schema*/enqueue_onto(
    p_job_type text, p_payload jsonb, p_run_at timestamptz, p_priority integer, p_unique_key text, p_on_conflict text,
    p_queue text, p_key text, p_version integer, p_source text, p_workspace_id text, p_trace_context jsonb,
    p_generation bigint, out job_id uuid, out outcome text
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    before /*schema*/job;
begin
    -- It runs as the owner, who sees every tenant: whoever has called it must, too, or stay with its own.
    if (p_workspace_id = nullif(current_setting('app.workspace_id', true), '')) is not true
       and not /*schema*/sees_every_tenant(coalesce(nullif(current_setting('role'), 'none'), session_user)) then
        raise 'row-level security: % is of another workspace than app.workspace_id', quote_nullable(left(p_job_type, 100))
            using errcode = 'insufficient_privilege';
    end if;
    if (p_on_conflict in ('keep', 'replace', 'debounce')) is not true then
        raise '% was not enqueued: on_conflict is keep, replace or debounce, not %', quote_nullable(left(p_job_type, 100)),
            quote_nullable(left(p_on_conflict, 100)) using errcode = 'OR004';
    end if;
    -- Nobody claims it before the caller commits: it shall see what the caller has written.
    select d.* into before from /*schema*/job as d
    where d.subscription = p_job_type and coalesce(d.workspace_id, '') = coalesce(p_workspace_id, '')
      and d.unique_key = p_unique_key and d.status = 'pending' and d.seq is null and not d.closed
    for key share;
    if not found then
        return;
    end if;
    if p_on_conflict = 'keep' then
        job_id := before.event_id;
        outcome := 'kept';
        return;
    end if;
    update /*schema*/job as d
    set payload = p_payload, event_version = p_version, source = p_source, workspace_id = p_workspace_id,
        trace_context = p_trace_context, generation = p_generation, queue = p_queue, priority = p_priority,
        job_key = p_key, waits_for = null, attempts = 0, crashes = 0,
        run_at = case p_on_conflict when 'replace' then p_run_at else greatest(d.run_at, p_run_at) end
    where d.id = before.id and d.status = 'pending' and not d.closed
    returning d.event_id into job_id;
    if found then
        outcome := case p_on_conflict when 'replace' then 'replaced' else 'debounced' end;
    end if;
end
$$;
