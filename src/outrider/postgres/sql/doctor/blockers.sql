-- blockers: who holds the lock that a process waits for, and the statement that ends each. Details that the role may not see of
-- other sessions are missing.
select format('process %%s (%%s, %%s, %%s): select pg_terminate_backend(%%s)', a.pid,
              coalesce(nullif(a.application_name, ''), 'no application_name'), a.usename, coalesce(a.state, 'unknown'), a.pid)
from unnest(pg_blocking_pids(%(pid)s)) as holder (pid) join pg_stat_activity as a on a.pid = holder.pid
order by a.xact_start limit 3
