-- audit_of: what operators did with one event, the oldest first; at most `most` entries. By the index on event_id.
select a.at, a.by, a.role, a.action, a.subscription, a.details from /*schema*/audit as a
where a.event_id = %(event_id)s order by a.id limit %(most)s
