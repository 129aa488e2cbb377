-- erase: delete the next payloads of a workspace or a subject, with what errors and results said of them.
-- The rows, their keys and the receipts stay. Each call is its own transaction; repeat with the returned place until it is null.
-- p_from, in this order:
--     pending   staged rows of rollups, of which a rollup would make new events
--     events, then each detached segment, then jobs
--     receipts  by pages of their table, for jobs and events that no longer exist
--     rest      the audit, and whether a segment was attached meanwhile
-- What is erased already is skipped, so it can be started again at any time. See tenant_page for which rows it finds.
--
-- Events that have not been handled are withdrawn first: no handler gets an empty payload, and nobody takes them later, neither a
-- relay that goes back nor a new subscription. Their jobs are discarded, also running ones.
-- p_audit: the audit entry of this run, in which it counts; null = the first call creates it.
-- Locks:  the subscriptions that have not handled all of the events, and their cursors, waiting for batches in progress; then the
--         jobs.
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
    who       constant text := /*schema*/signed(p_by);
    source    constant text := case p_from when 'events' then 'outbox' else p_from end;
    ids       uuid[];
    places    bigint[];
    names     text[];
    concerned text[];
    held      text[] := '{}';
    gone      record;
    owed      bigint := 0;
    pages     bigint;
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
        if p_from = 'pending' then
            return;
        end if;
        if exists (select from /*schema*/audit as a where a.action = 'attach_segment' and a.id > audit) then
            raise 'a segment was attached to the log meanwhile and may have been missed: run erase again' using errcode = 'OR006';
        end if;
        -- Payloads and errors that the audit kept of jobs that no longer exist.
        update /*schema*/audit as a set details = a.details - 'payload' - 'before' - 'error' || '{"erased": true}'
        where a.action in ('edit', 'discard') and a.details ?| array['payload', 'before', 'error'] and a.details ? 'job'
          and (p_workspace_id is null or a.details ->> 'workspace' = p_workspace_id)
          and (p_subject is null or p_jobs and a.details ->> 'job' = p_subject);
        update /*schema*/audit as a set details = a.details || jsonb_build_object('finished_at', clock_timestamp())
        where a.id = audit;
        return;
    end if;
    if p_from = 'receipts' then
        pages := greatest(p_scan / 20, 1);
        update /*schema*/event_handled as h
        set result = null, failure_history = /*schema*/scrubbed(h.failure_history), workspace_id = null, job_key = null
        where h.ctid >= format('(%s,0)', p_after)::tid and h.ctid < format('(%s,0)', p_after + pages)::tid
          and (h.result is not null or h.failure_history is not null)
          and (p_workspace_id is null or h.workspace_id = p_workspace_id)
          and (p_subject is null or p_jobs and h.job_key = p_subject);
        place := p_after + pages;
        if place * current_setting('block_size')::bigint >= pg_relation_size('/*schema*/event_handled') then
            place := null;
        end if;
        return;
    end if;
    select max(t.place) filter (where t.line is null),
           coalesce(array_agg(t.place) filter (where not t.erased), '{}'), coalesce(array_agg(t.found) filter (where not t.erased), '{}')
    into place, places, ids
    from /*schema*/tenant_page(p_workspace_id, p_kind, p_subject, p_jobs, p_from, p_after, p_scan) as t;
    if places = '{}' then
        return;
    end if;
    names := array(select s.name from /*schema*/subscription as s where s.kind <> 'inbox'
                   union select a.subscription from /*schema*/audit as a  -- whose receipts are still there
                   where a.action = 'retire' and a.subscription is not null);

    if p_from <> 'jobs' then
        loop
            concerned := array(
                select distinct e.subscription from /*schema*/event_status as e
                join /*schema*/subscription as s on s.name = e.subscription
                where e.seq = any (places) and (e.status <> 'delivered' or s.kind = 'relay'));
            exit when concerned <@ held;
            held := held || concerned;
            perform from /*schema*/subscription as s where s.name = any (held) order by s.name for no key update;
            perform from /*schema*/cursor as c where c.subscription = any (held)
            order by c.subscription, c.generation, c.partition for update;
        end loop;
        owed := (select count(distinct e.seq) from /*schema*/event_status as e
                 where e.seq = any (places) and e.status in ('pending', 'in_flight', 'failed'));
        insert into /*schema*/withdrawal (seq, event_id, withdrawn_by, reason, outcomes)
        select asked.seq, asked.id, who, left(p_reason, 2000), (
            select jsonb_object_agg(e.subscription, 'delivered') from /*schema*/event_status as e
            join /*schema*/subscription as s on s.name = e.subscription
            where e.seq = asked.seq and s.kind in ('reader', 'relay') and e.status = 'delivered')
        from unnest(places, ids) as asked (seq, id)
        on conflict do nothing;
    end if;

    for gone in
        update /*schema*/delivery as d
        set status = 'discarded', head = false, waiting = false, buried_at = null, locked_by = null, locked_at = null,
            lease_token = null, lease_expires_at = null, cancelled_at = null, progress = null,
            payload = case when d.payload is not null then '{}'::jsonb end, trace_context = null, last_error_code = '(erased)',
            last_error = null, last_traceback = null,
            failure_history = /*schema*/scrubbed(d.failure_history)
        from (select d.id, d.status from /*schema*/delivery as d
              where p_from = 'jobs' and d.id = any (places)
              union all
              select d.id, d.status from unnest(names) as n (name) cross join unnest(places) as asked (seq)
              cross join lateral (select d.id, d.status from /*schema*/delivery as d
                                  where d.subscription = n.name and d.seq = asked.seq limit 1) as d
              where p_from <> 'jobs') as was
        where d.id = was.id
        returning d.subscription, d.generation, d.event_type, d.queue, d.ordering_key, d.job_key, d.workspace_id,
                  was.status as was
    loop
        owed := owed + (p_from = 'jobs' and gone.was in ('pending', 'in_flight', 'failed'))::integer;
        continue when gone.was not in ('pending', 'in_flight');
        if gone.queue is null then
            perform /*schema*/promote(gone.subscription, gone.generation, array[gone.ordering_key]);
        elsif gone.job_key is not null then
            perform /*schema*/wake_jobs(array[gone.subscription]);
        end if;
        perform /*schema*/notify(
            /*schema*/generation_channel(gone.generation),
            case when gone.queue is null then gone.event_type else gone.subscription end);
    end loop;

    if p_from <> 'jobs' then
        execute format($receipts$
            update /*schema*/event_handled as h
            set result = null, failure_history = /*schema*/scrubbed(h.failure_history), workspace_id = null
            from (select n.name, /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id) as key, o.id
                  from unnest($1) as n (name) cross join /*schema*/%I as o
                  where o.seq = any ($2)) as asked
            where h.handler_name = asked.name and h.idempotency_key = asked.key and h.event_id = asked.id
              and (h.result is not null or h.failure_history is not null)$receipts$, source) using names, places;
        delete from /*schema*/stream_replayed as r where r.event_id = any (ids);
        execute format('update /*schema*/%I set payload = ''{}'', trace_context = null, erased_at = now() where seq = any ($1)',
                       source) using places;
        get diagnostics events = row_count;
    else
        jobs := cardinality(places);
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
