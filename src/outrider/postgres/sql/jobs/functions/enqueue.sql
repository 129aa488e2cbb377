-- enqueue: a job from SQL, in the caller's transaction: for triggers, psql and other languages. Its id is returned; with a
-- unique key, that of the job which has it. generation and workspace default to the session's settings
-- outrider.generation and app.workspace_id. Raises OR004 for what the Python enqueue refuses.
create or replace function /*schema*/enqueue(
    job_type text, payload jsonb default '{}', run_at timestamptz default null, priority integer default 0,
    unique_key text default null, on_conflict text default 'keep', queue text default 'default', key text default null,
    job_version integer default 1, source text default 'sql', workspace_id text default null,
    trace_context jsonb default null
) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    bytes   bigint := octet_length(nullif(/*schema*/as_text(payload), ''));
    allowed bigint := (select s.value from /*schema*/setting as s where s.name = 'payload_max_bytes');
begin
    if job_type is null or job_type !~ '^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)*$' or octet_length(job_type) > 63 then
        raise 'job type % is not lower-case words joined by dots, of at most 63 bytes',
            coalesce(quote_literal(job_type), 'NULL') using errcode = 'OR004';
    end if;
    if payload is null or jsonb_typeof(payload) <> 'object' then
        raise '% was not enqueued: the payload must be a JSON object', job_type using errcode = 'OR004';
    end if;
    if (bytes <= allowed) is not true then
        raise '% was not enqueued: its payload has % bytes, the limit is %', job_type,
            coalesce(bytes::text, 'more than 134217728'), allowed
            using errcode = 'OR004', hint = 'The setting payload_max_bytes holds the limit.';
    end if;
    if on_conflict is null or on_conflict not in ('keep', 'replace', 'debounce') then
        raise '% was not enqueued: on_conflict is keep, replace or debounce, not %', job_type,
            quote_nullable(on_conflict) using errcode = 'OR004';
    end if;
    if priority is null or priority not between -100 and 100 then
        raise '% was not enqueued: priority % is not between -100 and 100', job_type, quote_nullable(priority)
            using errcode = 'OR004';
    end if;
    if queue is null or queue !~ '^[a-z][a-z0-9_]*$' or octet_length(queue) > 63 then
        raise '% was not enqueued: queue % is not a lower-case word', job_type, quote_nullable(queue)
            using errcode = 'OR004';
    end if;
    if unique_key = '' or key = '' then
        raise '% was not enqueued: an empty key or unique key', job_type
            using errcode = 'OR004', hint = 'Leave it out, or pass NULL.';
    end if;
    if octet_length(unique_key) > 512 or octet_length(key) > 512 then
        raise '% was not enqueued: a key or unique key of more than 512 bytes', job_type using errcode = 'OR004';
    end if;
    return (/*schema*/enqueue_one(
        job_type, payload, null, run_at, priority, unique_key, on_conflict, queue, key, job_version, source,
        coalesce(workspace_id, nullif(current_setting('app.workspace_id', true), '')), trace_context,
        coalesce(nullif(current_setting('outrider.generation', true), '')::bigint, 0))).job_id;
end
$$;
