-- inbox_move: move an inbox to another position, if it is where the caller thinks.
update /*schema*/stream as s set position = %(position)s, moved_at = clock_timestamp()
where s.subscription = %(subscription)s and s.name = %(stream)s and s.position = %(after)s
returning s.position
