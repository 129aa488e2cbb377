-- replay: the dead letters of one event become pending again. See functions/outbox_replay.sql.
select subscription, outcome
from /*schema*/outbox_replay(%(event_id)s::uuid, p_replayed_by => %(by)s::text, p_subscription => %(subscription)s::text)
