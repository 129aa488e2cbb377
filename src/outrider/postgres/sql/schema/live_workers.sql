-- live_workers: those seen within the last 30 s by the database's clock, and the newest migration that each one knows.
-- Workers say so since migration 0004; those that do not, or an older schema without the column, know 3 at most.
select w.host || ':' || w.pid as place, w.version as code,
       coalesce((to_jsonb(w) ->> 'schema_version')::integer, 3) as knows
from /*schema*/worker as w
where w.seen_at > clock_timestamp() - interval '30 seconds'
order by w.started_at, w.id
