-- event_list_begins: the lowest number that an event of this time or later has: segments that were closed before have none.
-- Imports, whose events are older than their segments, are not missed; events that were dated into the future may be.
select coalesce(max(s.last_seq) + 1, 0) from /*schema*/segment as s where s.closed_at < %(since)s::timestamptz
