-- event_list_begins: the lowest position that an event of this time or later can have: segments that were closed before are skipped.
-- It does not miss imports, whose events are older than their segments; it may miss events that were dated into the future.
select coalesce(max(s.last_seq) + 1, 0) from /*schema*/segment as s where s.closed_at < %(since)s::timestamptz
