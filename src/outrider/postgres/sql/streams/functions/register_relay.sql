-- register_relay: store whose events a relay sends, and whether it forwards events of other services. Called after register.
create or replace function /*schema*/register_relay(p_name text, p_workspace_id text, p_forwards boolean) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    update /*schema*/subscription as s set workspace_id = p_workspace_id, forwards = p_forwards
    where s.name = p_name and s.kind = 'relay';
end
$$;
