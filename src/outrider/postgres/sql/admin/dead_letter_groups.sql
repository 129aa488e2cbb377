-- dead_letter_groups: dead letters grouped by subscription, event type and error, the largest group first.
-- The sample of a group is the newest one. The filter is that of functions/dead_letters.sql. Locks nothing. Of the oldest `most` that match, or of all.
select found.subscription, found.event_type, found.code, found.fingerprint, found.letters, found.oldest, found.newest,
       sample.event_id, sample.last_error
from (select d.subscription, d.event_type, d.last_error_code as code, d.fingerprint, count(*) as letters,
             min(d.buried_at) as oldest, max(d.buried_at) as newest,
             (array_agg(d.id order by d.buried_at desc, d.id desc))[1] as sample
      from /*schema*/dead_letters(
          %(subscription)s::text, %(event_type)s::text, %(code)s::text, %(fingerprint)s::text, %(since)s::timestamptz,
          %(until)s::timestamptz, %(workspace_id)s::text, %(generation)s::bigint, p_limit => %(most)s::bigint) as d
      group by 1, 2, 3, 4) as found
cross join lateral (select d.event_id, d.last_error from /*schema*/owed as d where d.id = found.sample limit 1) as sample
order by found.letters desc, found.newest desc, 1, 2, 3, 4
