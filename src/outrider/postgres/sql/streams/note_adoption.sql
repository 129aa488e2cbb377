-- note_adoption: that an operator let a relay go on after what is in a stream. See streams/functions/note_adoption.sql.
select /*schema*/note_adoption(
    %(subscription)s::text, %(stream)s::text, %(before)s::text, %(position)s::text, %(by)s::text, %(reason)s::text)
