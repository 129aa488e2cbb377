-- report: store a worker's report while its event loop is held and no heartbeat comes. Leaves seen_at alone.
update /*schema*/worker set report = %(report)s::jsonb, reported_at = clock_timestamp() where id = %(id)s
