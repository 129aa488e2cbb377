-- fates_between: the state of all events between two positions at these subscriptions. For tests: it reads all of them. Locks
-- nothing.
select e.subscription, e.event_type, e.seq, e.status, e.last_error from /*schema*/event_status as e
where e.seq > %(after)s and e.seq <= %(upto)s and e.subscription = any (%(names)s)
order by e.seq, e.subscription
