-- failing: for each of these subscriptions, the newest failure among a thousand of its events that wait for a retry.
select wanted.name, failed.event_id, failed.last_error_code, failed.last_error
from unnest(%(names)s::text[]) as wanted (name)
cross join lateral (
    select d.event_id, d.last_error_code, d.last_error
    from (select d.event_id, d.last_error_code, left(d.last_error, 200) as last_error, d.failure_history -> -1 ->> 'at' as at
          from /*schema*/delivery as d
          where d.subscription = wanted.name and d.status = 'pending' and d.head and d.reached limit 1000) as d
    where d.last_error_code is not null order by d.at desc nulls last limit 1) as failed
