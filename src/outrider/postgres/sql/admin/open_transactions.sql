-- open_transactions: transactions of this database that have written, the oldest first. Events that one of them has published are
-- read when it commits. Reads statistics and locks only.
with publisher as materialized (
    select distinct l.pid from pg_locks as l
    where l.locktype = 'relation' and l.mode = 'RowExclusiveLock' and l.granted
      and l.database = (select d.oid from pg_database as d where d.datname = current_database())
      and l.relation in ('/*schema*/outbox'::regclass, '/*schema*/job'::regclass)
)
select a.pid, coalesce(nullif(a.application_name, ''), 'no application_name'), a.usename::text, coalesce(a.state, 'unknown'),
       clock_timestamp() - a.xact_start as age, left(nullif(a.query, '<insufficient privilege>'), 300),
       a.pid in (select p.pid from publisher as p)
from pg_stat_activity as a
where a.datname = current_database() and a.xact_start is not null and a.pid <> pg_backend_pid()
  and a.backend_type = 'client backend' and a.backend_xid is not null
order by a.xact_start
limit %(most)s
