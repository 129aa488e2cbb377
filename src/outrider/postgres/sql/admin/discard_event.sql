-- discard_event: discard the dead letters of one event, of one subscription or of all. Returns how many there were.
select /*schema*/discard(
    array(select d.id from /*schema*/owed as d
          where d.id = any (/*schema*/owed_of(%(event_id)s::uuid)) and d.subscription = coalesce(%(subscription)s::text, d.subscription)),
    %(by)s::text, %(reason)s::text)
