-- replay: the dead letters of one event become pending again. See admin/functions/outbox_replay.sql.
select subscription, outcome
from /*schema*/outbox_replay(
    %(event_id)s::uuid, %(generation)s::bigint, %(by)s::text, %(subscription)s::text, %(force)s::boolean,
    %(payload)s::text::jsonb, %(reason)s::text)
