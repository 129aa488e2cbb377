-- in_workspace: a name that is unique within its workspace, made unique among all; without a workspace, the name itself.
-- An SQL expression that the planner puts in place of the call.
create or replace function /*schema*/in_workspace(p_workspace_id text, p_name text) returns text
    language sql stable
    return coalesce(length(p_workspace_id) || ':' || p_workspace_id || ':', '') || p_name;
