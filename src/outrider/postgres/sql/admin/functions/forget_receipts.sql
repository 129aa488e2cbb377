-- forget_receipts: delete the receipts of these deliveries and jobs, so that they can be handled again. The audit keeps each.
-- The caller is replay, which has locked them.
create or replace function /*schema*/forget_receipts(p_deliveries bigint[], p_by text, p_reason text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    with gone as (
        delete from /*schema*/event_handled as h using /*schema*/owed as d, /*schema*/outbox as o
        where d.id = any (p_deliveries) and o.seq = d.seq and h.handler_name = d.subscription
          and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
        returning d.id, to_jsonb(h) as receipt
    )
    insert into /*schema*/audit (by, action, subscription, event_id, details)
    select p_by, 'force_replay', d.subscription, d.event_id, jsonb_strip_nulls(jsonb_build_object(
        'reason', left(p_reason, 2000), 'receipt', gone.receipt,
        'discarded', nullif(gone.receipt is null and d.status = 'discarded', false)))
    from /*schema*/owed as d left join gone on gone.id = d.id
    where d.id = any (p_deliveries);
end
$$;
