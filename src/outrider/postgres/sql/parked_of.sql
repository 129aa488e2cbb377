-- parked_of: how many events of these types wait for their retry.
select count(*) from /*schema*/delivery as d
where d.subscription = %(name)s and d.status in ('pending', 'in_flight') and d.event_type = any (%(types)s::text[])
