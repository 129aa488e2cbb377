-- refused_again: refused entries of an inbox to be tried again, the oldest first.
-- Locks them until the transaction ends.
select r.id, r.subscription, r.stream, r.position, r.data, r.message, r.at from /*schema*/stream_refused as r
where r.subscription = %(subscription)s
order by r.id for update
