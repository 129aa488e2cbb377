-- rename: give a subscription another name, with its cursors, deliveries, jobs and receipts. Audited.
-- Refused (OR010) while workers serve it, unless p_force; and if the name is or was that of another subscription.
-- Locks:  the subscription and its cursors, waiting for the batches in progress. Rewrites every receipt.
-- Returns how many receipts there were.
create or replace function /*schema*/rename(
    p_old text, p_new text, p_force boolean default false, p_by text default null, p_reason text default null
) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '10s'
as $$
declare
    receipts bigint;
begin
    if (p_new ~ '^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)*$' and octet_length(p_new) <= 63) is not true then
        raise 'the new name % is not lower-case words joined by dots, of at most 63 bytes', quote_nullable(left(p_new, 100))
            using errcode = 'OR010';
    end if;
    perform /*schema*/hold_subscription(p_old);
    if p_force is not true then
        perform /*schema*/refuse_served(p_old);
    end if;
    if exists (select from /*schema*/subscription as s where s.name = p_new) then
        raise 'a subscription ''%'' exists already: if it was registered by mistake and has handled nothing, run `outrider subscription retire %` first; otherwise choose another name',
            p_new, p_new using errcode = 'OR010';
    end if;
    if exists (select from /*schema*/event_handled as h where h.handler_name = p_new) then
        raise 'receipts of an earlier subscription ''%'' exist, and the events that it handled would be skipped: choose another name', p_new
            using errcode = 'OR010';
    end if;
    update /*schema*/delivery as d set subscription = p_new where d.subscription = p_old;
    update /*schema*/job as j set subscription = p_new where j.subscription = p_old;
    update /*schema*/subscription as s set name = p_new where s.name = p_old;
    update /*schema*/event_handled as h set handler_name = p_new where h.handler_name = p_old;
    get diagnostics receipts = row_count;
    perform /*schema*/note('rename', p_by, p_reason, p_old, null, jsonb_build_object('new', p_new, 'receipts', receipts));
    return receipts;
end
$$;
