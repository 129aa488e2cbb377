-- is_live: whether a worker that was seen at this time counts as alive. Heartbeats come every 10 s.
-- The planner inlines it. live_workers and uninstall/workers repeat the rule, for schemas without this function.
create or replace function /*schema*/is_live(p_seen_at timestamptz) returns boolean
    language sql stable
    return p_seen_at > pg_catalog.now() - interval '30 seconds';
