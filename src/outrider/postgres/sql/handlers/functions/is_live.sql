-- is_live: whether a worker that was seen at this time is taken for alive: its heartbeat comes every 10 s. A plain expression,
-- which the planner puts in place of the call. live_workers and uninstall/workers repeat it, for schemas that lack it.
create or replace function /*schema*/is_live(p_seen_at timestamptz) returns boolean
    language sql stable
    return p_seen_at > pg_catalog.now() - interval '30 seconds';
