-- marks: the marks of a relay before a moment, the newest first.
select m.at, m.positions from /*schema*/stream_mark as m
where m.subscription = %(subscription)s and m.at < coalesce(%(before)s::timestamptz, 'infinity')
order by m.at desc limit %(limit)s
