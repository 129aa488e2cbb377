-- traffic: how many of the newest events above a position are of each type, version and source, and when the newest of them occurred.
-- Locks nothing. Reads the log by primary key, at most `most` events.
select o.event_type, o.event_version, o.source, o.origin, count(*), max(o.occurred_at)
from (select o.event_type, o.event_version, o.source, o.origin, o.occurred_at
      from /*schema*/outbox as o where o.seq > %(after)s order by o.seq desc limit %(most)s) as o
group by o.event_type, o.event_version, o.source, o.origin
