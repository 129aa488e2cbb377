-- erase_events: delete the payloads of these events, of the log or of a detached segment, and what their deliveries, jobs and
-- receipts say of them. The caller is erase. Returns how many of the events somebody had still to handle.
-- These are withdrawn first: no handler gets an empty payload, and nobody takes them later, neither a relay that goes back nor a new
-- subscription. Their jobs are discarded, also running ones.
-- Locks:  the subscriptions that have not handled all of the events, and their cursors, waiting for batches in progress; then the
--         jobs.
create or replace function /*schema*/erase_events(p_source text, p_seqs bigint[], p_ids uuid[], p_by text, p_reason text)
    returns bigint
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    names     text[];
    concerned text[];
    held      text[] := '{}';
    gone      record;
    owed      bigint;
begin
    loop
        concerned := array(
            select distinct e.subscription from /*schema*/event_status as e
            join /*schema*/subscription as s on s.name = e.subscription
            where e.seq = any (p_seqs) and (e.status <> 'delivered' or s.kind = 'relay'));
        exit when concerned <@ held;
        held := held || concerned;
        perform from /*schema*/subscription as s where s.name = any (held) order by s.name for no key update;
        perform from /*schema*/cursor as c where c.subscription = any (held)
        order by c.subscription, c.generation, c.partition for update;
    end loop;
    owed := (select count(distinct e.seq) from /*schema*/event_status as e
             where e.seq = any (p_seqs) and e.status in ('pending', 'in_flight', 'failed'));
    insert into /*schema*/withdrawal (seq, event_id, withdrawn_by, reason, outcomes)
    select asked.seq, asked.id, p_by, left(p_reason, 2000), (
        select jsonb_object_agg(e.subscription, 'delivered') from /*schema*/event_status as e
        join /*schema*/subscription as s on s.name = e.subscription
        where e.seq = asked.seq and s.kind in ('reader', 'relay') and e.status = 'delivered')
    from unnest(p_seqs, p_ids) as asked (seq, id)
    on conflict do nothing;

    for gone in
        update /*schema*/delivery as d
        set status = 'discarded', head = false, buried_at = null, payload = case when d.payload is not null then '{}'::jsonb end,
            last_error_code = '(erased)', last_error = null, last_traceback = null,
            failure_history = /*schema*/scrubbed(d.failure_history)
        from (select d.id, d.status from /*schema*/delivery as d
              where d.event_id = any (p_ids) and d.seq = any (p_seqs)) as was
        where d.id = was.id
        returning d.subscription, d.generation, d.event_type, d.ordering_key, was.status as was
    loop
        continue when gone.was <> 'pending';
        perform /*schema*/promote(gone.subscription, gone.generation, array[gone.ordering_key]);
        perform /*schema*/notify(/*schema*/generation_channel(gone.generation), gone.event_type);
    end loop;
    perform /*schema*/erase_jobs(array(
        select j.id from /*schema*/job as j
        where j.event_id = any (p_ids) and j.seq = any (p_seqs) and j.lease_token is null  -- the predicate of job_of_event
        union all
        select j.id from /*schema*/job as j
        where j.event_id = any (p_ids) and j.seq = any (p_seqs) and j.status = 'in_flight'));

    names := array(select s.name from /*schema*/subscription as s where s.kind <> 'inbox'
                   union select a.subscription from /*schema*/audit as a  -- whose receipts are still there
                   where a.action = 'retire' and a.subscription is not null);
    execute format($receipts$
        update /*schema*/event_handled as h
        set result = null, failure_history = /*schema*/scrubbed(h.failure_history), workspace_id = null
        from (select n.name, /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id) as key, o.id
              from unnest($1) as n (name) cross join /*schema*/%I as o
              where o.seq = any ($2)) as asked
        where h.handler_name = asked.name and h.idempotency_key = asked.key and h.event_id = asked.id
          and (h.result is not null or h.failure_history is not null)$receipts$, p_source) using names, p_seqs;
    delete from /*schema*/stream_replayed as r where r.event_id = any (p_ids);
    execute format('update /*schema*/%I set payload = ''{}'', trace_context = null, erased_at = now() where seq = any ($1)',
                   p_source) using p_seqs;
    return owed;
end
$$;
