-- positions: how far each generation of each subscription has read: its slowest cursor, and how many log positions are behind it,
-- those of other types and of rolled back transactions included. Locks nothing, reads no event.
select c.subscription, c.generation, coalesce(max(c.served_by), c.generation) as served_by, min(c.seq) as seq,
       greatest(coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0) - min(c.seq), 0) as lag,
       max(c.failures) as failures, max(c.open_until) filter (where c.open_until > clock_timestamp()) as open_until
from /*schema*/cursor as c
group by c.subscription, c.generation
order by c.subscription, c.generation
