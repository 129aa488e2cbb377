-- discard: the dead letters of one event, at one subscription or at every one that buried it; how many there were.
select /*schema*/discard(
    array(select d.id from /*schema*/delivery as d
          where d.event_id = %(event_id)s::uuid and d.subscription = coalesce(%(subscription)s::text, d.subscription)),
    %(by)s::text, %(reason)s::text)
