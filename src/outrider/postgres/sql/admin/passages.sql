-- passages: when an event came in through its inbox, and by when each relay had sent it: the oldest mark of the relay's cursor that is
-- past it. By primary key; marks are few.
select o.origin, h.handled_at
from /*schema*/outbox as o
join /*schema*/event_handled as h on h.handler_name = o.origin and h.idempotency_key = o.id::text
where o.seq = %(seq)s
union all
select s.name, (select min(m.at) from /*schema*/stream_mark as m
                where m.subscription = s.name and (m.cursor ->> 'seq')::bigint >= %(seq)s)
from /*schema*/subscription as s where s.kind = 'relay'
