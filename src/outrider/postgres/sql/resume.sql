-- resume: takes read the subscription again. Pokes its workers, which may be asleep, as a publisher would.
with resumed as (
    update /*schema*/subscription set paused_at = null where name = %(name)s returning name, event_types
),
channels as (
    select distinct case c.generation when 0 then 'outbox_default' else 'outbox_gen_' || c.generation end as name
    from /*schema*/cursor as c where c.subscription = %(name)s
)
select resumed.name, (select count(pg_notify(channels.name, wanted.event_type))
                      from channels, unnest(coalesce(resumed.event_types, array[''])) as wanted (event_type))
from resumed
