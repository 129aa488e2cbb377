-- caused: the jobs that the handlers of an event enqueued and that still exist; the newest hundred, the newest first.
-- Locks nothing. Reads the newest `most` jobs by primary key: an index on caused_by would cost every such job more than
-- this rare question is worth.
select d.event_id, d.subscription, d.status
from (select d.id, d.event_id, d.subscription, d.status, d.caused_by from /*schema*/job as d order by d.id desc limit %(most)s) as d
where d.caused_by = %(event_id)s order by d.id desc limit 100
