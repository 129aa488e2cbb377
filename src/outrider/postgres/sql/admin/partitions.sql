-- partitions: each cursor of one subscription, and how many log positions are behind it. By primary key; reads no event.
select c.generation, c.partition, c.seq,
       greatest(coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0) - c.seq, 0),
       c.failures, case when c.open_until > clock_timestamp() then c.open_until end
from /*schema*/cursor as c
where c.subscription = %(name)s
order by c.generation, c.partition
