-- in_workspace: make a name that is unique within its workspace unique among all; without a workspace, the name itself.
-- The planner inlines it.
create or replace function /*schema*/in_workspace(p_workspace_id text, p_name text) returns text
    language sql stable
    return coalesce(length(p_workspace_id) || ':' || p_workspace_id || ':', '') || p_name;
