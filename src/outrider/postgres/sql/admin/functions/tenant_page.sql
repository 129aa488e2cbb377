-- tenant_page: the next rows of a workspace, or of a subject (an aggregate's kind and id) in one workspace or in all, as JSON texts.
-- p_from: events (by seq), jobs (that were enqueued, by id), or a detached segment of the log (by seq). p_jobs: the jobs of a
-- subject are those with its id as their key.
-- Reads:  at most p_scan rows after p_after: no index has the workspace. Locks nothing. A page ends where its payloads exceed
--         batch_bytes.
-- Returns a first row without a text, with the place up to which it read (null = the end), then the rows. A payload that cannot be
--         read is null, and the row says so (unreadable).
create or replace function /*schema*/tenant_page(
    p_workspace_id text, p_kind text, p_subject text, p_jobs boolean, p_from text, p_after bigint, p_scan integer
) returns table (place bigint, found uuid, erased boolean, line text)
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set jit = off
as $$
#variable_conflict use_column
declare
    source text;
    ends   bigint;
begin
    perform /*schema*/sees_all(true);
    perform /*schema*/refuse_nobody(p_workspace_id, p_kind, p_subject);
    if p_from = 'jobs' then
        select coalesce(
                   step.ids[/*schema*/fitting($payloads$
                       select j.payload from unnest($1) with ordinality as q (id, n)
                       cross join lateral (select j.payload from /*schema*/job as j where j.id = q.id limit 1) as j
                       order by q.n$payloads$, step.ids)],
                   step.last)
        into ends
        from (select array_agg(j.id order by j.id) filter (
                         where j.seq is null and (p_workspace_id is null or j.workspace_id = p_workspace_id)) as ids,
                     case when count(*) = p_scan then max(j.id) end as last
              from (select j.id, j.seq, j.workspace_id from /*schema*/job as j
                    where j.id > p_after order by j.id limit p_scan) as j) as step;
        place := ends;
        return next;
        return query
        select step.id, step.event_id, step.erased, case when /*schema*/as_text(step.payload) = ''
               then (jsonb_build_object('kind', 'job') || to_jsonb(step) - 'erased' || '{"payload": null, "unreadable": true}')::text
               else (jsonb_build_object('kind', 'job') || to_jsonb(step) - 'erased')::text end
        from (select j.id, j.event_id, j.subscription, j.subscription as event_type, j.event_version, j.source, j.workspace_id,
                     j.generation, j.status, j.queue, j.priority, j.job_key, j.unique_key, j.run_at, j.attempts, j.last_error_code,
                     j.last_error, j.created_at, j.progress, j.payload, coalesce(j.last_error_code = '(erased)', false) as erased
              from /*schema*/job as j
              where j.id > p_after and j.id <= coalesce(ends, 9223372036854775807)
                and j.seq is null and (p_workspace_id is null or j.workspace_id = p_workspace_id)
                and (p_subject is null or p_jobs and j.job_key = p_subject)
              order by j.id) as step;
        return;
    end if;
    source := case p_from when 'events' then 'outbox' else (
        select s.name from /*schema*/segment as s where s.name = p_from and s.detached_at is not null) end;
    if source is null then
        raise 'there is no detached segment %', quote_nullable(p_from) using errcode = 'OR006';
    end if;
    return query execute format($query$
        with read as materialized (
            select o.* from /*schema*/%1$I as o where o.seq > $1 order by o.seq limit $2
        ),
        step as materialized (
            select read.*
            from read
            where ($3 is null or read.workspace_id = $3)
              and ($4 is null or read.aggregate_kind = $4 and read.aggregate_id = $5)
        ),
        ends as materialized (
            select coalesce((select (array_agg(step.seq order by step.seq))[/*schema*/fitting($payloads$
                                 select o.payload from unnest($1) with ordinality as q (seq, n)
                                 cross join lateral (select o.payload from /*schema*/%1$I as o where o.seq = q.seq limit 1) as o
                                 order by q.n$payloads$,
                                 array_agg(step.seq order by step.seq))] from step),
                            case when count(*) = $2 then max(read.seq) end) as seq from read
        )
        select ends.seq, null::uuid, null::boolean, null::text from ends
        union all
        (select step.seq, step.id, (line.said ->> 'erased_at') is not null,
                case when /*schema*/as_text(step.payload) = '' or /*schema*/as_text(step.trace_context) = ''
                     then line.said || '{"payload": null, "trace_context": null, "unreadable": true}' else line.said end::text
         from step cross join lateral (
             select jsonb_build_object('kind', 'event') || to_jsonb(step) - 'tx' - 'channel' as said) as line
         where step.seq <= coalesce((select ends.seq from ends), step.seq)
         order by step.seq)$query$, source)
    using p_after, p_scan, p_workspace_id, p_kind, p_subject;
end
$$;
