-- streams: the positions of the streams of relays and inboxes: of one subscription, of one name, or all.
select s.subscription, sub.kind, s.name, s.position, s.events, s.moved_at
from /*schema*/stream as s join /*schema*/subscription as sub on sub.name = s.subscription
where (%(subscription)s::text is null or s.subscription = %(subscription)s)
  and (%(name)s::text is null or s.name = %(name)s) and (%(kind)s::text is null or sub.kind = %(kind)s)
order by s.subscription, s.name
