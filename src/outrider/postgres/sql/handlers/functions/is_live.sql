-- is_live: whether a worker that was seen at this time counts as alive. Heartbeats come every 10 s.
-- Not if it was seen in the future: a worker that died while the server's clock was ahead would keep its generation from others, when
-- the clock has gone back, for as long as the clock was ahead. One that lives is seen again within 10 s.
-- The planner inlines it. live_workers and uninstall/workers repeat the rule, for schemas without this function.
create or replace function /*schema*/is_live(p_seen_at timestamptz) returns boolean
    language sql stable
    return p_seen_at between pg_catalog.statement_timestamp() - interval '30 seconds'
                         and pg_catalog.statement_timestamp() + interval '1 minute';
