-- erase_receipts: delete what receipts say of a workspace, or of jobs with this key, in the next pages of their table.
-- The caller is erase. Returns the page to continue with; null = the end.
create or replace function /*schema*/erase_receipts(
    p_workspace_id text, p_subject text, p_jobs boolean, p_page bigint, p_pages integer
) returns bigint
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    next constant bigint := p_page + p_pages;
begin
    update /*schema*/event_handled as h
    set result = null, failure_history = /*schema*/scrubbed(h.failure_history), workspace_id = null, job_key = null
    where h.ctid >= format('(%s,0)', p_page)::tid and h.ctid < format('(%s,0)', next)::tid
      and (h.result is not null or h.failure_history is not null)
      and (p_workspace_id is null or h.workspace_id = p_workspace_id)
      and (p_subject is null or p_jobs and h.job_key = p_subject);
    return case when next * current_setting('block_size')::bigint < pg_relation_size('/*schema*/event_handled') then next end;
end
$$;
