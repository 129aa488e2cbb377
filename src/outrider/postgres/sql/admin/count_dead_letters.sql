-- count_dead_letters: how many dead letters match, and how many of them a replay would skip because their idempotency key has a
-- receipt. Reads the log by seq, once for each. Locks nothing. Of the oldest `most` that match, or of all.
select count(*), count(h.handled_at)
from /*schema*/dead_letters(
    %(subscription)s::text, %(event_type)s::text, %(code)s::text, %(fingerprint)s::text, %(since)s::timestamptz,
    %(until)s::timestamptz, %(workspace_id)s::text, %(generation)s::bigint, p_limit => %(most)s::bigint) as d
left join lateral (select o.* from /*schema*/outbox as o where o.seq = d.seq limit 1) as o on true
left join /*schema*/event_handled as h
    on h.handler_name = d.subscription
   and h.idempotency_key = /*schema*/receipt_key(o.workspace_id, o.event_type, o.idempotency_key, o.id)
