-- inbox_count: add to the number of changes that came in. The caller has locked the row.
update /*schema*/stream as s set events = s.events + %(events)s
where s.subscription = %(subscription)s and s.name = %(stream)s
returning s.events
