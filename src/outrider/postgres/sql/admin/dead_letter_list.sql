-- dead_letter_list: single dead letters by id, at most `limit` after the id `after`. Locks nothing.
select d.id, d.event_id, d.subscription, d.event_type, coalesce(event.aggregate_id, d.job_key), d.attempts, d.cycle, d.last_error_code,
       d.last_error, d.fingerprint, d.buried_at, coalesce(event.workspace_id, d.workspace_id), d.generation
from /*schema*/dead_letters(
    %(subscription)s::text, %(event_type)s::text, %(code)s::text, %(fingerprint)s::text, %(since)s::timestamptz,
    %(until)s::timestamptz, %(workspace_id)s::text, %(generation)s::bigint, %(after)s::bigint, %(limit)s::bigint) as d
left join lateral (
    select o.aggregate_id, o.workspace_id from /*schema*/outbox as o where o.seq = d.seq limit 1) as event on true
order by d.id
