-- event_list_ends: a position above all events whose ids are older than this time; null if no event is newer. The index on id finds it,
-- by the time in ids of version 7. Publishers' clocks may differ by a minute.
select o.seq from /*schema*/outbox as o
where o.id >= (lpad(to_hex((extract(epoch from %(until)s::timestamptz) * 1000)::bigint + 60000), 12, '0')
               || '70008000000000000000')::uuid
  and o.id < (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || 'ffffffffffffffffffff')::uuid
order by o.id limit 1
