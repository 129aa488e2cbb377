-- settle_jobs: what became of jobs that a worker had claimed. Each names its lease; a job whose lease is another's, or
-- nobody's, is not touched and not in the answer: whoever asks sees what landed. One row without a number: all of p_done.
-- p_names: the types that they are of.
-- p_done, p_tokens, p_results: those that are done, with their leases and results. They go, and leave a receipt.
-- p_others: [{delivery, token, verdict, delay, code, message, counted}], see release.
-- Locks:  the limits of their types where these have any; then the jobs.
create or replace function /*schema*/settle_jobs(
    p_names text[], p_done bigint[], p_tokens bigint[], p_results jsonb[], p_others jsonb, p_worker text
) returns table (delivery bigint, outcome text)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_hashjoin = off        -- by their ids, however many the planner expects
    set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
#variable_conflict use_column
declare
    limited text[];
    asked   record;
    job     /*schema*/delivery;
    landed  bigint[];
    names   text[];
    keys    text[];
    tenants text[];
begin
    perform /*schema*/sees_all();
    limited := array(
        select s.name from /*schema*/subscription as s
        where s.name = any (p_names) and (s.concurrency is not null or s.key_concurrency is not null));
    if limited <> '{}' then
        perform /*schema*/hold_limits(limited);
    end if;
    with named as materialized (
        select n.id, n.token, n.result from unnest(p_done, p_tokens, p_results) as n (id, token, result)
    ),
    gone as (
        delete from /*schema*/delivery as d using named
        -- Only who is in flight has a token; to say so would offer the planner an index that makes this quadratic.
        where d.id = named.id and d.lease_token = named.token
        returning d.id, d.subscription, d.event_id, d.seq, d.generation, d.workspace_id, d.unique_key, d.job_key,
                  d.failure_history, named.result
    ),
    receipts as (
        insert into /*schema*/event_handled (
            handler_name, idempotency_key, event_id, seq, generation, content_class, result, failure_history)
        select gone.subscription,
               coalesce(coalesce(length(gone.workspace_id) || ':' || gone.workspace_id || ':', '') || gone.unique_key,
                        gone.event_id::text),
               gone.event_id, gone.seq, gone.generation, 'internal', gone.result, nullif(gone.failure_history, '[]')
        from gone where gone.seq is not null
        on conflict do nothing
    ),
    -- Nobody else has the id of an enqueued job: a plain insert does, which costs less (see take).
    own_receipts as (
        insert into /*schema*/event_handled (
            handler_name, idempotency_key, event_id, seq, generation, content_class, result, failure_history)
        select gone.subscription, gone.event_id::text, gone.event_id, 0, gone.generation, 'internal', gone.result,
               nullif(gone.failure_history, '[]')
        from gone where gone.seq is null
    ),
    freed as (
        select distinct gone.subscription, gone.workspace_id, gone.job_key from gone
        where gone.job_key is not null and gone.subscription = any (limited)
    )
    select array_agg(gone.id),
           (select array_agg(freed.subscription) from freed), (select array_agg(freed.workspace_id) from freed),
           (select array_agg(freed.job_key) from freed)
    into landed, names, tenants, keys from gone;
    perform /*schema*/admit(k.name, k.key, k.tenant) from unnest(names, keys, tenants) as k (name, key, tenant);
    if cardinality(landed) = cardinality(p_done) then
        outcome := 'done';
        return next;
    else
        return query select l.id, 'done' from unnest(landed) as l (id);
    end if;

    for asked in
        select o.* from jsonb_to_recordset(p_others) as o (
            delivery bigint, token bigint, verdict text, delay double precision, code text, message text, counted boolean)
        order by o.delivery
    loop
        select d.* into job from /*schema*/delivery as d
        where d.id = asked.delivery and d.lease_token = asked.token and d.status = 'in_flight'
        for update;
        if found then
            delivery := asked.delivery;
            outcome := /*schema*/release(
                job, asked.verdict, coalesce(asked.delay, 0), asked.code, asked.message, coalesce(asked.counted, true),
                p_worker);
            return next;
        end if;
    end loop;
    -- There is room again, and others may be waiting for it; suspects also for that of their key, since nobody admits them.
    perform pg_notify(case next.generation when 0 then 'outbox_default' else 'outbox_gen_' || next.generation end, l.name)
    from unnest(limited) as l (name)
    join /*schema*/subscription as s on s.name = l.name
    cross join lateral (
        (select d.generation from /*schema*/delivery as d
         where s.concurrency is not null
           and d.subscription = l.name and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes = 0
         order by d.generation limit 1)
        union
        (select d.generation from /*schema*/delivery as d
         where d.subscription = l.name and d.status = 'pending' and d.queue is not null and not d.waiting and d.crashes > 0
         order by d.run_at, d.id limit 1)) as next;
end
$$;
