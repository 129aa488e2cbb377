-- enqueue_one: one job, in the caller's transaction. What became of it: created; or, when a pending job of the type and
-- workspace has its unique key, what p_on_conflict says: kept (the first stays as it is), replaced (it gets this payload, priority and
-- time, and all its attempts), debounced (the same, but it never runs earlier than it would have). Back: the id of the job
-- that there is now. p_caused_by: the event or job whose handler enqueues it.
-- Locks:  nothing; with a unique key the pending jobs that have it, waiting for whoever is about to change them.
create or replace function /*schema*/enqueue_one(
    p_job_type text, p_payload jsonb, p_id uuid default null, p_run_at timestamptz default null, p_priority integer default 0,
    p_unique_key text default null, p_on_conflict text default 'keep', p_queue text default 'default',
    p_key text default null, p_version integer default 1, p_source text default 'sql', p_workspace_id text default null,
    p_trace_context jsonb default null, p_generation bigint default 0, p_poke boolean default true,
    p_caused_by uuid default null,
    out job_id uuid, out outcome text
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    due     timestamptz := coalesce(p_run_at, clock_timestamp());
    made_id uuid := coalesce(p_id, /*schema*/uuid7());
begin
    if p_poke then
        perform /*schema*/notify(/*schema*/generation_channel(p_generation), p_job_type);
    end if;
    loop
        -- Nothing is returned: whoever enqueues needs no right to read.
        insert into /*schema*/job (
            subscription, generation, event_id, event_version, source, workspace_id, trace_context, run_at, queue, priority,
            job_key, unique_key, payload, caused_by)
        values (
            p_job_type, p_generation, made_id, p_version, p_source, p_workspace_id, p_trace_context, due, p_queue, p_priority,
            p_key, p_unique_key, p_payload, p_caused_by)
        on conflict do nothing;
        if found then
            job_id := made_id;
            outcome := 'created';
            exit;
        end if;
        select o.job_id, o.outcome into job_id, outcome
        from /*schema*/enqueue_onto(
            p_job_type, p_payload, due, p_priority, p_unique_key, p_on_conflict, p_queue, p_key, p_version, p_source,
            p_workspace_id, p_trace_context, p_generation) as o;
        exit when job_id is not null;
        -- It was claimed in between: the next insert will do, unless there is a third.
    end loop;
    if p_unique_key is not null and p_on_conflict <> 'keep' then
        perform /*schema*/replace_closed(p_job_type, p_unique_key, p_workspace_id);
    end if;
end
$$;
