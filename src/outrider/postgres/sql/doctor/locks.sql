-- locks: who holds locks for which our sessions, or others that use our tables, have waited longer than `patience`.
-- One row per head of a queue: how many wait behind it and since when, its last statement, and the statement that ends it. A prepared
-- transaction has process id 0. Reads the lock table and the sessions; asks who blocks for at most 50 waiting sessions.
with recursive ours as materialized (
    select l.pid, min(l.waitstart) as since
    from pg_locks as l
    where not l.granted and l.waitstart < clock_timestamp() - %(patience)s::interval and l.pid <> pg_backend_pid()
      and (exists (select from pg_stat_activity as a where a.pid = l.pid and a.datname = current_database()
                     and a.application_name ~ '^outrider')
           or exists (select from pg_locks as t join pg_class as c on c.oid = t.relation
                      where t.pid = l.pid and t.locktype = 'relation'
                        and t.database = (select d.oid from pg_database as d where d.datname = current_database())
                        and c.relnamespace = (select o.relnamespace from pg_class as o where o.oid = '/*schema*/outbox'::regclass)))
    group by l.pid order by 2 limit 50
),
chain (pid, since, waits, depth) as (
    select b.pid, ours.since, ours.pid, 1 from ours, unnest(pg_blocking_pids(ours.pid)) as b (pid)
    union
    select b.pid, chain.since, chain.waits, chain.depth + 1
    from chain, unnest(pg_blocking_pids(nullif(chain.pid, 0))) as b (pid) where chain.depth < 5
)
select case when chain.pid = 0 then 'a prepared transaction'
            else format('process %%s (%%s, %%s, %%s)', chain.pid, coalesce(nullif(a.application_name, ''), 'no application_name'),
                        a.usename, coalesce(a.state, 'unknown')) end as who,
       a.state like 'idle in transaction%%' as idle, clock_timestamp() - coalesce(a.state_change, a.xact_start) as state_since,
       left(a.query, 200) as query, count(distinct chain.waits) as waiting, clock_timestamp() - min(chain.since) as since,
       (select string_agg(distinct coalesce(nullif(w.application_name, ''), 'no application_name'), ', ')
        from pg_stat_activity as w where w.pid = any (array_agg(chain.waits))) as waiters,
       case when chain.pid = 0 then 'commit prepared, or rollback prepared'
            else format('select pg_terminate_backend(%%s)', chain.pid) end as ends
from chain left join pg_stat_activity as a on a.pid = chain.pid
where a.wait_event_type is distinct from 'Lock'
group by chain.pid, a.pid, a.application_name, a.usename, a.state, a.state_change, a.xact_start, a.query
order by since desc limit 20
