-- note: insert one entry into the audit. Called by the functions of operators, which run as the owner: `role` is who is logged in,
-- `by` who they say they are. Texts from outside are cut.
create or replace function /*schema*/note(
    p_action text, p_by text, p_reason text, p_subscription text default null, p_event_id uuid default null,
    p_details jsonb default '{}'
) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into /*schema*/audit (role, by, action, subscription, event_id, details)
    values (session_user, /*schema*/signed(p_by), p_action, p_subscription, p_event_id,
            p_details || case when p_reason is null then '{}' else jsonb_build_object('reason', left(p_reason, 2000)) end);
end
$$;
