-- segments: every segment, attached or detached: about how many events, its bytes, its state, and what happens to it when.
-- Reads the catalogue and statistics, and no event.
select s.name, s.first_seq, s.last_seq,
       case when s.detached_at is not null then 'detached'
            when s.closed_at is not null then 'closed'
            when s.begun_at is not null then 'written'
            when s.last_seq is null then 'last'
            else 'ahead' end as state,
       greatest(c.reltuples, 0)::bigint as events, coalesce(pg_total_relation_size(c.oid), 0) as bytes,
       s.begun_at, s.closed_at, s.detached_at, s.kept,
       case when s.detached_at is not null then s.detached_at + make_interval(days => grace.value::integer)
            else greatest(s.closed_at + make_interval(days => days.value::integer), s.wanted_until) end as due_at
from /*schema*/segment as s
left join pg_class as c on c.relname = s.name and c.relnamespace = (
    select o.relnamespace from pg_class as o where o.oid = '/*schema*/outbox'::regclass)
left join /*schema*/setting as days on days.name = 'retention.log_days'
left join /*schema*/setting as grace on grace.name = 'retention.log_grace_days'
order by s.first_seq
