-- erase_rest: delete the payloads and errors that the audit kept of jobs that no longer exist, and finish the entry of this erase.
-- The caller is erase. Raises OR006 if a segment was attached since the entry: it may have been missed.
create or replace function /*schema*/erase_rest(p_workspace_id text, p_subject text, p_jobs boolean, p_audit bigint) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from /*schema*/audit as a where a.action = 'attach_segment' and a.id > p_audit) then
        raise 'a segment was attached to the log meanwhile and may have been missed: run erase again' using errcode = 'OR006';
    end if;
    update /*schema*/audit as a set details = a.details - 'payload' - 'before' - 'error' || '{"erased": true}'
    where a.action in ('edit', 'discard') and a.details ?| array['payload', 'before', 'error'] and a.details ? 'job'
      and (p_workspace_id is null or a.details ->> 'workspace' = p_workspace_id)
      and (p_subject is null or p_jobs and a.details ->> 'job' = p_subject);
    update /*schema*/audit as a set details = a.details || jsonb_build_object('finished_at', clock_timestamp())
    where a.id = p_audit;
end
$$;
