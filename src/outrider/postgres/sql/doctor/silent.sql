-- silent: workers without a heartbeat for longer than `late` whose session still exists: for how long, which session, and whether
-- its role may still write heartbeats. Not workers whose watchdog reports a held event loop. Reads a small table and the sessions.
select format('%%s:%%s', w.host, w.pid) as worker, clock_timestamp() - w.seen_at as since, a.pid as backend,
       quote_ident(a.usename) as role,
       has_schema_privilege(a.usesysid, c.relnamespace, 'usage') and has_table_privilege(a.usesysid, c.oid, 'insert')
           and has_table_privilege(a.usesysid, c.oid, 'update') as may,
       array(select s.name from unnest(w.subscriptions) as s (name) limit 5) as subscriptions
from /*schema*/worker as w
join pg_stat_activity as a on a.pid = w.backend and a.backend_start <= w.seen_at and a.datname = current_database()
join pg_class as c on c.oid = '/*schema*/worker'::regclass
where w.seen_at < clock_timestamp() - %(late)s::interval and (w.reported_at > w.seen_at) is not true
order by w.seen_at limit 20
