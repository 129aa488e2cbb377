-- workers: the workers seen within the last 30 seconds by the database's clock.
select w.host || ':' || w.pid || ' (' || array_to_string(w.subscriptions, ', ') || ')' as worker
from /*schema*/worker as w where w.seen_at between clock_timestamp() - interval '30 seconds' and clock_timestamp() + interval '1 minute' order by 1
