-- refused_again: refused entries of an inbox to be tried again: those with these ids, or all; the oldest first.
-- Locks them until the transaction ends.
select r.id, r.subscription, r.stream, r.position, r.data, r.message, r.at from /*schema*/stream_refused as r
where r.subscription = %(subscription)s and (%(ids)s::bigint[] is null or r.id = any (%(ids)s::bigint[]))
order by r.id for update
