-- resume: takes read the subscription again, also where its breaker is open. Pokes its workers, which may be asleep, as a
-- publisher would.
with resumed as (
    update /*schema*/subscription set paused_at = null where name = %(name)s returning name, event_types
),
closed as (
    update /*schema*/cursor as c set failures = 0, open_until = null
    where c.subscription = %(name)s and (c.failures > 0 or c.open_until is not null)
),
channels as (
    select distinct case c.generation when 0 then 'outbox_default' else 'outbox_gen_' || c.generation end as name
    from /*schema*/cursor as c where c.subscription = %(name)s
)
select resumed.name, (select count(pg_notify(channels.name, wanted.event_type))
                      from channels, unnest(coalesce(resumed.event_types, array[''])) as wanted (event_type))
from resumed
