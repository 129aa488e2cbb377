-- idle: the generations of these subscriptions in which a take would find nothing, in any partition.
-- One look for the polls of all handlers of a worker. Whatever is not returned must be taken: a cursor that is gone, too.
-- Exact for its snapshot, by the rule of lock_cursor: every position of the sequence was read, and nothing that was unfinished then
-- has been committed since. With anything parked, or an open breaker, the take decides.
-- Reads cursors, the sequence, and the indexes that a take reads. Locks nothing.
select c.subscription, c.generation
from /*schema*/cursor as c
where c.subscription = any (%(subscriptions)s::text[])
group by c.subscription, c.generation
having bool_and(
    c.seq = (select coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0))
    and c.cluster = (select /*schema*/log_home())
    and c.horizon < pg_snapshot_xmax(pg_current_snapshot())
    and c.owing is null
    and c.open_until is null
    and not exists (select from /*schema*/delivery as d
                    where d.subscription = c.subscription and d.generation = c.generation and d.partition = c.partition
                      and d.status = 'pending' and d.head and d.reached)
    and not exists (select from /*schema*/late_transactions(
                        c.inflight, c.horizon, pg_current_snapshot(), c.floor, c.seq)))
