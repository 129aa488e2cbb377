-- audit: what operators did, the newest first; at most `limit` entries that match all given filters. By primary key
-- backwards, or by the index on the subscription, on the name or on the role: one condition for both would read the whole audit.
select a.id, a.at, a.by, a.role, a.action, a.subscription, a.event_id, a.details
from (
    (select a.* from /*schema*/audit as a
     where %(by)s::text is null
       and (%(subscription)s::text is null or a.subscription = %(subscription)s)
       and (%(since)s::interval is null or a.at >= clock_timestamp() - %(since)s::interval)
       and (%(before)s::bigint is null or a.id < %(before)s)
     order by a.id desc limit %(limit)s)
    union all
    (select a.* from /*schema*/audit as a
     where a.by = %(by)s::text
       and (%(subscription)s::text is null or a.subscription = %(subscription)s)
       and (%(since)s::interval is null or a.at >= clock_timestamp() - %(since)s::interval)
       and (%(before)s::bigint is null or a.id < %(before)s)
     order by a.id desc limit %(limit)s)
    union all
    (select a.* from /*schema*/audit as a
     where a.role = %(by)s::text and a.by <> a.role
       and (%(subscription)s::text is null or a.subscription = %(subscription)s)
       and (%(since)s::interval is null or a.at >= clock_timestamp() - %(since)s::interval)
       and (%(before)s::bigint is null or a.id < %(before)s)
     order by a.id desc limit %(limit)s)
) as a
order by a.id desc limit %(limit)s
