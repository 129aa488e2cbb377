-- tuples: dead rows of our tables, and when they were last vacuumed. Reads the statistics only.
select s.relname, s.n_live_tup, s.n_dead_tup, greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at
from pg_stat_user_tables as s
where s.relid in (select c.oid from pg_class as c
                  where c.relnamespace = (select o.relnamespace from pg_class as o where o.oid = '/*schema*/outbox'::regclass))
order by s.n_dead_tup desc
