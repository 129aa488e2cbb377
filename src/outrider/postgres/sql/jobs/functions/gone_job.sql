-- gone_job: of a job that is not there any more: done, for each subscription that has a receipt of it; else one row, not_found.
-- For cancel and run_now, which run as the owner.
create or replace function /*schema*/gone_job(p_job_id uuid, p_subscription text)
    returns table (subscription text, outcome text)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    return query
    select h.handler_name, 'done' from /*schema*/subscription as s
    left join lateral (select o.* from /*schema*/outbox as o where o.id = p_job_id limit 1) as o on true
    join /*schema*/event_handled as h
        on h.handler_name = s.name
       and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, p_job_id)
    where s.kind = 'job' and s.name = coalesce(p_subscription, s.name);
    if not found then
        return query select p_subscription, 'not_found';
    end if;
end
$$;
