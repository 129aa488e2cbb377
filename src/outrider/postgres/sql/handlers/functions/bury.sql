-- bury: make a parked event a dead letter, and the next event of its key the head. The caller holds the cursor's lock.
create or replace function /*schema*/bury(p_delivery bigint, p_code text, p_message text, p_worker text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    buried /*schema*/delivery;
begin
    update /*schema*/delivery as d
    set status = 'failed', head = false, suspect = false, last_error_code = p_code, last_error = p_message, last_traceback = null,
        buried_at = now(), first_failed_at = coalesce(d.first_failed_at, now()),
        failure_history = d.failure_history || /*schema*/failure(d.cycle, d.attempts, p_code, p_message, p_worker)
    where d.id = p_delivery and d.status = 'pending'
    returning d.* into buried;
    perform /*schema*/promote(buried.subscription, buried.generation, array[buried.ordering_key]);
end
$$;
