-- refused: the entries of which inboxes could not make events, the oldest first.
select r.id, r.subscription, r.stream, r.position, r.data, r.message, r.at from /*schema*/stream_refused as r
where (%(subscription)s::text is null or r.subscription = %(subscription)s) and r.id > %(after)s
order by r.id limit %(limit)s
