-- replay_dead_letters: replay the next dead letters after the id `after`, at most `limit`, in one short transaction.
-- Returns the last id, null if there was none, and how many had each outcome. See functions/replay.sql.
select max(done.delivery), count(*) filter (where done.outcome = 'replayed'),
       count(*) filter (where done.outcome = 'skipped_handled'), count(*) filter (where done.outcome = 'superseded'), 0,
       count(*) filter (where done.outcome = 'not_found')
from /*schema*/replay(
    array(select d.id from /*schema*/dead_letters(
        %(subscription)s::text, %(event_type)s::text, %(code)s::text, %(fingerprint)s::text, %(since)s::timestamptz,
        %(until)s::timestamptz, %(workspace_id)s::text, %(generation)s::bigint, %(after)s::bigint,
        %(limit)s::bigint) as d),
    %(by)s::text, %(to_generation)s::bigint, %(force)s::boolean, null, %(reason)s::text) as done
