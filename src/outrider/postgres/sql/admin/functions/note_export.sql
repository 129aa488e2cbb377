-- note_export: audit the export of a workspace or a subject. Without p_audit, before the first page: insert an entry and return its
-- id. With it, at the end: add how many events and jobs there were.
create or replace function /*schema*/note_export(
    p_workspace_id text, p_kind text, p_subject text, p_by text default null, p_reason text default null,
    p_audit bigint default null, p_events bigint default null, p_jobs bigint default null
) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
as $$
declare
    entry bigint;
begin
    perform /*schema*/sees_all(true);
    perform /*schema*/refuse_nobody(p_workspace_id, p_kind, p_subject);
    if p_audit is null then
        insert into /*schema*/audit (role, by, action, details)
        values (session_user, /*schema*/signed(p_by), 'export', jsonb_strip_nulls(jsonb_build_object(
            'reason', left(p_reason, 2000), 'workspace', left(p_workspace_id, 255), 'kind', left(p_kind, 255),
            'subject', left(p_subject, 512))))
        returning id into entry;
        return entry;
    end if;
    update /*schema*/audit as a
    set details = a.details || jsonb_build_object('events', p_events, 'jobs', p_jobs, 'finished_at', clock_timestamp())
    where a.id = p_audit and a.action = 'export' and a.role = session_user and not a.details ? 'finished_at'
      and p_events >= 0 and p_jobs >= 0 and (a.details ->> 'workspace', a.details ->> 'kind', a.details ->> 'subject')
          is not distinct from (left(p_workspace_id, 255), left(p_kind, 255), left(p_subject, 512))
    returning a.id into entry;
    if entry is null then
        raise 'audit entry % is not of this export', p_audit using errcode = 'OR006';
    end if;
    return entry;
end
$$;
