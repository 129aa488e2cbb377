-- audit: what operators did, the newest first; at most `limit` entries that match all given filters. By primary key
-- backwards.
select a.id, a.at, a.by, a.role, a.action, a.subscription, a.event_id, a.details from /*schema*/audit as a
where (%(subscription)s::text is null or a.subscription = %(subscription)s)
  and (%(by)s::text is null or %(by)s in (a.by, a.role))
  and (%(since)s::interval is null or a.at >= clock_timestamp() - %(since)s::interval)
  and (%(before)s::bigint is null or a.id < %(before)s)
order by a.id desc limit %(limit)s
