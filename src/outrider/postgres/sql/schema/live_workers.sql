-- live_workers: the workers seen within the last 30 s by the database's clock, and the newest migration that each knows.
-- A worker that does not say it knows none.
select w.host || ':' || w.pid as place, w.version as code,
       coalesce(w.schema_version, 0) as knows
from /*schema*/worker as w
where w.seen_at between clock_timestamp() - interval '30 seconds' and clock_timestamp() + interval '1 minute'
order by w.started_at, w.id
