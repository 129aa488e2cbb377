-- report: what troubles a worker, beside its heartbeats: its event loop is held, and it cannot be seen.
update /*schema*/worker set report = %(report)s::jsonb, reported_at = clock_timestamp() where id = %(id)s
