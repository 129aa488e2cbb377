-- settled: the 99th percentile of the time from publishing to the receipt, of the last day: for the newest thousand log positions,
-- for the thousand before them, and among these for what was handled in the last 5 minutes. Events that failed before they were
-- handled do not count: they waited for their retry, or as dead letters.
-- The newest position is read once, because the planner cannot use the index with pg_sequence_last_value, which is volatile; and
-- from the sequence itself, which fails for a role that may not read it.
with newest as materialized (
    select case when s.is_called then s.last_value else 0 end as seq from /*schema*/outbox_seq as s
)
select page.number, percentile_cont(0.99) within group (order by extract(epoch from h.handled_at - o.occurred_at)), count(*),
       clock_timestamp() - min(o.occurred_at) as ago,
       percentile_cont(0.99) within group (order by extract(epoch from h.handled_at - o.occurred_at))
           filter (where h.handled_at > clock_timestamp() - interval '5 minutes')
from generate_series(0, 1) as page (number)
cross join lateral (
    select o.id, o.event_type, o.workspace_id, o.idempotency_key, o.occurred_at from /*schema*/outbox as o
    where o.seq > (select newest.seq from newest) - 1000 * (page.number + 1)
      and o.seq <= (select newest.seq from newest) - 1000 * page.number
      and o.occurred_at > clock_timestamp() - interval '1 day' offset 0) as o
join /*schema*/subscription as s on s.kind = 'handler' and (s.event_types is null or o.event_type = any (s.event_types))
cross join lateral (
    select h.handled_at from /*schema*/event_handled as h
    where h.handler_name = s.name
      and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
      and h.event_id = o.id and h.failure_history is null limit 1) as h
group by page.number order by page.number
