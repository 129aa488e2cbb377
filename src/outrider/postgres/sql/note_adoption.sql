-- note_adoption: that an operator let a relay go on after what is in a stream, for the audit; in the transaction that does it.
insert into /*schema*/audit (by, action, subscription, details)
values (%(by)s, 'adopt_stream', %(subscription)s,
        jsonb_build_object('stream', %(stream)s::text, 'before', %(before)s::text, 'position', %(position)s::text))
