-- workers: the workers seen within the last 30 seconds by the database's clock.
select w.host || ':' || w.pid || ' (' || array_to_string(w.subscriptions, ', ') || ')' as worker
from /*schema*/worker as w where w.seen_at > clock_timestamp() - interval '30 seconds' order by 1
