-- workers_seen: all workers that have not said goodbye, those that were last seen first.
select w.host, w.pid, w.version, w.generation, w.subscriptions, w.unable, w.listening, w.stopping, w.started_at, w.seen_at,
       w.seen_at > clock_timestamp() - interval '30 seconds' as live, w.schema_version,
       w.report, w.reported_at
from /*schema*/worker as w
order by w.host, w.pid, w.started_at
