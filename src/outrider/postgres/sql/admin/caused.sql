-- caused: the jobs that the handlers of an event have enqueued, as long as they are there; the newest hundred first.
-- Locks nothing. Looks at the newest `most` rows of delivery, by its primary key: an index on caused_by would cost every such job more
-- than it is worth here.
select d.event_id, d.subscription, d.status
from (select d.id, d.event_id, d.subscription, d.status, d.caused_by from /*schema*/delivery as d order by d.id desc limit %(most)s) as d
where d.caused_by = %(event_id)s order by d.id desc limit 100
