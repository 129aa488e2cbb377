-- caused: the jobs that the handlers of an event have enqueued, as long as they are there. By the index on caused_by.
select d.event_id, d.subscription, d.status from /*schema*/delivery as d
where d.caused_by = %(event_id)s order by d.id limit %(most)s
