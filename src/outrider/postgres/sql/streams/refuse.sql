-- refuse: store entries of which an inbox could not make events, in the transaction that moves it past them.
insert into /*schema*/stream_refused (subscription, stream, position, data, message)
select %(subscription)s, %(stream)s, r.position, r.data, r.message
from unnest(%(positions)s::text[], %(data)s::bytea[], %(messages)s::text[]) as r (position, data, message)
