-- resume_all: takes read again, except where a subscription is paused by itself. Pokes all workers, which may be asleep.
with resumed as (
    update /*schema*/setting set value = 0, updated_at = now() where name = 'paused' and value = 1 returning name
)
select count(pg_notify(poke.channel, poke.event_type))
from (select distinct case c.generation when 0 then 'outbox_default' else 'outbox_gen_' || c.generation end as channel,
             wanted.event_type
      from resumed, /*schema*/cursor as c join /*schema*/subscription as s on s.name = c.subscription
      cross join unnest(coalesce(s.event_types, array[''])) as wanted (event_type)) as poke
