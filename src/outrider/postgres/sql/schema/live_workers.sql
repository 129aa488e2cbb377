-- live_workers: the workers seen within the last 30 s by the database's clock, and the newest migration that each knows.
-- Workers report it since migration 0004; one that does not, or a schema without the column, knows 3 at most.
select w.host || ':' || w.pid as place, w.version as code,
       coalesce((to_jsonb(w) ->> 'schema_version')::integer, 3) as knows
from /*schema*/worker as w
where w.seen_at > clock_timestamp() - interval '30 seconds'
order by w.started_at, w.id
