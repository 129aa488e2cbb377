-- ordering_key: which events of a subscription wait for one another, as delivery.ordering_key: those of the same key and workspace
-- ('key'), all ('total'), or none (null). The planner inlines it.
create or replace function /*schema*/ordering_key(p_ordering text, p_workspace_id text, p_aggregate_id text) returns text
    language sql stable
    return case p_ordering when 'total' then '' when 'key' then /*schema*/in_workspace(p_workspace_id, p_aggregate_id) end;
