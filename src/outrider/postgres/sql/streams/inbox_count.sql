-- inbox_count: so many changes have come in; the row is locked by who has moved it.
update /*schema*/stream as s set events = s.events + %(events)s
where s.subscription = %(subscription)s and s.name = %(stream)s
returning s.events
