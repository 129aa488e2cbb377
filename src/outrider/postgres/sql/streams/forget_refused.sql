-- forget_refused: delete refused entries that have become events after all, in the transaction that makes these.
delete from /*schema*/stream_refused as r where r.id = any (%(ids)s::bigint[])
