-- refuse_nobody: raise an error unless this names a workspace, or a subject by its kind and id, or both.
create or replace function /*schema*/refuse_nobody(p_workspace_id text, p_kind text, p_subject text) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if p_workspace_id is null and p_subject is null or (p_kind is null) <> (p_subject is null) then
        raise 'whose? Name a workspace, or the kind and id of a subject, or both' using errcode = 'OR006';
    end if;
end
$$;
