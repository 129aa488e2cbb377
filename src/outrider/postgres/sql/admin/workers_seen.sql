-- workers_seen: all workers that have not signed off, the last seen first.
select w.host, w.pid, w.version, w.generation, w.subscriptions, w.unable, w.listening, w.stopping, w.started_at, w.seen_at,
       /*schema*/is_live(w.seen_at) as live, w.schema_version, w.strict,
       w.report, w.reported_at
from /*schema*/worker as w
order by w.host, w.pid, w.started_at
