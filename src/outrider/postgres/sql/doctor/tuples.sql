-- tuples: dead rows of our tables, and when they were last vacuumed; all segments of the log together, because they come and go.
-- Reads only statistics.
select case when c.relname ~ '^outbox_' then 'outbox' else s.relname end as relation, sum(s.n_live_tup)::bigint,
       sum(s.n_dead_tup)::bigint, max(greatest(s.last_vacuum, s.last_autovacuum)) as vacuumed_at
from pg_stat_user_tables as s join pg_class as c on c.oid = s.relid
where c.relnamespace = (select o.relnamespace from pg_class as o where o.oid = '/*schema*/outbox'::regclass)
group by relation
order by 3 desc
