-- blockers: the sessions and prepared transactions that hold our tables. Asked after a lock timeout.
select distinct case
           when l.pid is null then 'a prepared transaction'
           else 'process ' || l.pid || ' (' || coalesce(nullif(a.application_name, ''), 'no application_name') || ', '
                || coalesce(a.state, 'unknown') || ')' end as who
from pg_locks as l left join pg_stat_activity as a on a.pid = l.pid
join pg_class as c on c.oid = l.relation
where l.granted and l.pid is distinct from pg_backend_pid()
  and l.database = (select d.oid from pg_database as d where d.datname = current_database())
  and c.relnamespace = (select n.oid from pg_namespace as n where n.nspname = %(schema)s)
order by 1 limit 10
