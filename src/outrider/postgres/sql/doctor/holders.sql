-- holders: the oldest transactions, prepared transactions, standbys and replication slots, which keep vacuum from removing dead rows.
-- Those that write also keep cursors waiting for their events. Only transactions of this database hold back our tables. The oldest
-- of each kind comes first. `ends` is the statement that ends it. `idle`: how long a transaction that has published or enqueued has
-- done nothing.
with publisher as materialized (
    select distinct l.pid from pg_locks as l
    where l.locktype = 'relation' and l.mode = 'RowExclusiveLock' and l.granted
      and l.relation in ('/*schema*/outbox'::regclass, '/*schema*/delivery'::regclass, '/*schema*/job'::regclass)
      and l.database = (select d.oid from pg_database as d where d.datname = current_database())
)
(select case a.application_name when 'outrider worker' then 'batch' else 'transaction' end as kind,
        format('process %s (%s, %s, %s)', a.pid, coalesce(nullif(a.application_name, ''), 'no application_name'), a.usename,
               a.state) as who,
        a.backend_xid is not null as writes, clock_timestamp() - a.xact_start as since,
        greatest(age(a.backend_xmin), age(a.backend_xid)) as xids, format('select pg_terminate_backend(%s)', a.pid) as ends,
        case when a.state like 'idle in transaction%' and a.pid in (select p.pid from publisher as p)
             then clock_timestamp() - a.state_change end as idle
 from pg_stat_activity as a
 where a.datname = current_database() and a.xact_start is not null and a.pid <> pg_backend_pid()
   and a.backend_type = 'client backend'
 order by a.xact_start limit 20)
union all
(select 'prepared', format('the prepared transaction %L of %s', p.gid, p.owner), true, clock_timestamp() - p.prepared,
        age(p.transaction), format('rollback prepared %L', p.gid), null
 from pg_prepared_xacts as p where p.database = current_database()
 order by p.prepared limit 20)
union all
(select 'standby', format('the standby of process %s (%s, %s)', a.pid, coalesce(nullif(a.application_name, ''),
                          'no application_name'), a.usename),
        false, null, age(a.backend_xmin), format('select pg_terminate_backend(%s)', a.pid), null
 from pg_stat_activity as a where a.backend_type = 'walsender' and a.backend_xmin is not null
 order by age(a.backend_xmin) desc limit 20)
union all
(select 'slot', format('the replication slot %s (%s)', s.slot_name, case when s.active then 'active' else 'not active' end),
        false, null, greatest(age(s.xmin), age(s.catalog_xmin)), format('select pg_drop_replication_slot(%L)', s.slot_name), null
 from pg_replication_slots as s where s.xmin is not null or s.catalog_xmin is not null
 order by greatest(age(s.xmin), age(s.catalog_xmin)) desc limit 20)
order by since desc nulls last, xids desc nulls last
