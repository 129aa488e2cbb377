-- settle_done: delete jobs that are done, and insert the receipts that are needed. For settle_jobs.
-- A job leaves a receipt if it came from an event (so that no other event with its key becomes a job), if it has a result or a
-- failure history, or if its type sets keep. Producers can choose the id of a job: of the jobs with one id, the first that needs
-- a receipt leaves it. Of the jobs with one unique key, an older one that still runs is superseded.
-- Locks:  the jobs, waiting; then those older ones.
-- Returns the jobs whose lease was named.
create or replace function /*schema*/settle_done(
    p_names text[], p_done bigint[], p_tokens bigint[], p_results jsonb[]
) returns bigint[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off         -- only bitmap scans, which need a condition on an index: see the delete
    set enable_indexscan = off
    set enable_nestloop = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
declare
    landed  bigint[];
    newer   bigint[];
    older   bigint[];
    names   text[];
    tenants text[];
    keys    text[];
begin
    with named as materialized (
        select n.id, n.token, n.result from unnest(p_done, p_tokens, p_results) as n (id, token, result)
    ),
    gone as (
        delete from /*schema*/job as d using named
        -- By their ids once, then a hash join, even if the statistics say that the table is empty: an old snapshot keeps dead rows,
        -- and a nested loop would read them all for each job. Only who is in flight has a token; to say so would offer another index.
        where d.id = any (p_done) and d.id = named.id and d.lease_token = named.token
        returning d.id, d.subscription, d.event_id, d.seq, d.generation, d.workspace_id, d.unique_key, d.job_key,
                  d.failure_history, named.result
    ),
    receipts as (
        insert into /*schema*/event_handled (
            handler_name, idempotency_key, event_id, seq, generation, content_class, result, failure_history, workspace_id,
            job_key)
        select gone.subscription,
               coalesce(case when gone.seq is not null then /*schema*/in_workspace(gone.workspace_id, gone.unique_key) end,
                        gone.event_id::text),
               gone.event_id, coalesce(gone.seq, 0), gone.generation, 'internal', gone.result, gone.failure_history,
               case when said.anything then gone.workspace_id end,
               case when said.anything and gone.seq is null then gone.job_key end
        from gone cross join lateral (select num_nonnulls(gone.result, gone.failure_history) > 0) as said (anything)
        where gone.seq is not null or said.anything or gone.subscription = any (array(
            select s.name from /*schema*/subscription as s where s.name = any (p_names) and s.keep is not null))
        on conflict do nothing
    )
    select array_agg(gone.id), array_agg(gone.id) filter (where u.own), array_agg(gone.subscription) filter (where u.own),
           array_agg(coalesce(gone.workspace_id, '')) filter (where u.own), array_agg(gone.unique_key) filter (where u.own)
    into landed, newer, names, tenants, keys
    from gone cross join lateral (select gone.unique_key is not null and gone.seq is null) as u (own);
    if newer is not null then
        older := array(
            select older.id from unnest(newer, names, tenants, keys) as n (id, name, tenant, key)
            cross join lateral (
                select j.id from /*schema*/job as j
                where j.subscription = n.name and coalesce(j.workspace_id, '') = n.tenant and j.unique_key = n.key
                  and j.status = 'in_flight' and j.seq is null and j.id < n.id limit 1000) as older);
        if older <> '{}' then
            update /*schema*/job as d set superseded_at = clock_timestamp()
            where d.id = any (older) and d.status = 'in_flight' and not d.closed;
        end if;
    end if;
    return coalesce(landed, '{}');
end
$$;
