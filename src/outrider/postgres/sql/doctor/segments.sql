-- segments: how many segments the log has, how many are empty and made ahead, where the last, unbounded one begins, how many events
-- it holds, up to `most`, and about how many events there are. The newest position is read from the sequence, which fails for a role
-- that may not read it.
with segment as (
    select (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''?(\d+)'))[1]::bigint as first,
           pg_get_expr(c.relpartbound, c.oid) like '%% TO (MAXVALUE)' as last
    from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = '/*schema*/outbox'::regclass
),
newest as materialized (
    select case when s.is_called then s.last_value else 0 end as seq from /*schema*/outbox_seq as s
),
made as materialized (
    select (select newest.seq from newest) as seq, count(*) as segments,
           count(*) filter (where segment.first > (select newest.seq from newest) and not segment.last) as ahead,
           max(segment.first) filter (where segment.last) as last_begins
    from segment
)
select made.seq, made.segments, made.ahead, made.last_begins,
       (select count(*) from (select from /*schema*/outbox as o where o.seq >= made.last_begins limit %(most)s) as o) as in_last,
       (select made.seq - o.seq + 1 from /*schema*/outbox as o order by o.seq limit 1) as numbers
from made
