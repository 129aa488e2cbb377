-- audit_of: what operators did with one event, the oldest first; at most `most` entries. By the index on event_id: `offset 0`
-- keeps the planner from reading the whole audit in the order of its primary key.
select found.at, found.by, found.role, found.action, found.subscription, found.details
from (select a.* from /*schema*/audit as a where a.event_id = %(event_id)s offset 0) as found
order by found.id limit %(most)s
