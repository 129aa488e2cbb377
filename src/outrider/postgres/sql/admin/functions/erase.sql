-- erase: delete the next payloads of a workspace or a subject, with what errors and results said of them.
-- The rows, their keys and the receipts stay. Each call is its own transaction; repeat with the returned place until it is null.
-- p_from, in this order:
--     pending   staged rows of rollups, of which a rollup would make new events, and schedules, which would enqueue new jobs
--     events, then each detached segment, then jobs
--     receipts  by pages of their table, for jobs and events that no longer exist
--     rest      the audit, and whether a segment was attached meanwhile
-- What is erased already is skipped, so it can be started again at any time. See tenant_page for which rows it finds.
-- p_audit: the audit entry of this run, in which it counts; null = the first call creates it.
-- Locks:  see erase_events and erase_jobs.
create or replace function /*schema*/erase(
    p_workspace_id text, p_kind text, p_subject text, p_jobs boolean, p_from text, p_after bigint, p_scan integer,
    p_reason text, p_by text default null, p_audit bigint default null,
    out place bigint, out audit bigint, out events bigint, out jobs bigint
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set lock_timeout = '10s'
    set jit = off
as $$
#variable_conflict use_column
declare
    who    constant text := /*schema*/signed(p_by);
    ids    uuid[];
    places bigint[];
    names  text[];
    owed   bigint;
begin
    perform /*schema*/sees_all(true);
    if coalesce(p_reason, '') = '' then
        raise 'nothing was erased: a reason is required, for the audit' using errcode = 'OR006';
    end if;
    perform /*schema*/refuse_nobody(p_workspace_id, p_kind, p_subject);
    audit := p_audit;
    if audit is not null and not exists (
        select from /*schema*/audit as a
        where a.id = p_audit and a.action = 'erase' and (a.role, a.by) = (session_user, who) and not a.details ? 'finished_at'
          and a.at > clock_timestamp() - interval '1 day'
          and (a.details ->> 'workspace', a.details ->> 'kind', a.details ->> 'subject')
              is not distinct from (left(p_workspace_id, 255), left(p_kind, 255), left(p_subject, 512))) then
        raise 'nothing was erased: audit entry % is not of this run', p_audit using errcode = 'OR006';
    end if;
    if audit is null then
        insert into /*schema*/audit (by, action, details)
        values (who, 'erase', jsonb_strip_nulls(jsonb_build_object(
            'reason', left(p_reason, 2000), 'workspace', left(p_workspace_id, 255), 'kind', left(p_kind, 255),
            'subject', left(p_subject, 512), 'events', 0, 'jobs', 0)))
        returning id into audit;
    end if;
    events := 0;
    jobs := 0;
    if p_from in ('pending', 'rest') then
        update /*schema*/rollup_pending as p
        set carried = '{}', processed_at = coalesce(p.processed_at, now()), error = 'erased'
        where p.carried <> '{}' and (
            p_subject is null and p.workspace_id = p_workspace_id
            or exists (select from /*schema*/outbox as o where o.id = p.event_id and o.erased_at is not null));
        -- Paused, not deleted: a running worker would register it again, and enqueue.
        with blanked as (
            update /*schema*/schedule as s
            set job = s.job || '{"payload": {}}', paused_at = coalesce(s.paused_at, clock_timestamp())
            where (p_workspace_id is null or s.job ->> 'workspace_id' = p_workspace_id)
              and (p_subject is null or p_jobs and s.job ->> 'key' = p_subject)
              and (s.job -> 'payload' <> '{}' or s.paused_at is null)
            returning s.name
        )
        select array_agg(blanked.name order by blanked.name) into names from blanked;
        if names is not null then
            update /*schema*/audit as a
            set details = a.details || jsonb_build_object('schedules', coalesce(a.details -> 'schedules', '[]') || to_jsonb(names))
            where a.id = audit;
        end if;
        if p_from = 'rest' then
            perform /*schema*/erase_rest(p_workspace_id, p_subject, p_jobs, audit);
        end if;
        return;
    end if;
    if p_from = 'receipts' then
        place := /*schema*/erase_receipts(p_workspace_id, p_subject, p_jobs, p_after, greatest(p_scan / 20, 1));
        return;
    end if;
    select max(t.place) filter (where t.line is null),
           coalesce(array_agg(t.place) filter (where not t.erased), '{}'), coalesce(array_agg(t.found) filter (where not t.erased), '{}')
    into place, places, ids
    from /*schema*/tenant_page(p_workspace_id, p_kind, p_subject, p_jobs, p_from, p_after, p_scan) as t;
    if places = '{}' then
        return;
    end if;
    if p_from = 'jobs' then
        jobs := cardinality(places);
        owed := /*schema*/erase_jobs(places);
    else
        events := cardinality(places);
        owed := /*schema*/erase_events(case p_from when 'events' then 'outbox' else p_from end, places, ids, who, p_reason);
    end if;
    update /*schema*/audit as a
    set details = a.details - 'payload' - 'before' - 'owed' - 'receipt' - 'error' || '{"erased": true}'
    where a.event_id = any (ids) and a.details ?| array['payload', 'before', 'owed', 'receipt', 'error'];
    update /*schema*/audit as a
    set details = a.details || jsonb_build_object(
        'events', (a.details ->> 'events')::bigint + events, 'jobs', (a.details ->> 'jobs')::bigint + jobs,
        'withdrawn', coalesce((a.details ->> 'withdrawn')::bigint, 0) + owed)
    where a.id = audit;
end
$$;
