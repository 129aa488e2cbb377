-- discard_dead_letters: discard the next dead letters after the id `after`, at most `limit`, in one short transaction.
-- Returns the columns of replay_dead_letters.
select chosen.last, 0, 0, 0, done.discarded, coalesce(cardinality(chosen.ids), 0) - done.discarded
from (select max(d.id) as last, array_agg(d.id) as ids
      from /*schema*/dead_letters(
          %(subscription)s::text, %(event_type)s::text, %(code)s::text, %(fingerprint)s::text, %(since)s::timestamptz,
          %(until)s::timestamptz, %(workspace_id)s::text, %(generation)s::bigint, %(after)s::bigint,
          %(limit)s::bigint) as d) as chosen
cross join lateral /*schema*/discard(chosen.ids, %(by)s::text, %(reason)s::text) as done (discarded)
