-- counts: the newest migration, the events of the log, the receipts, and the open transactions that publish or enqueue, whose events
-- and jobs are not visible yet. Reads the whole log and all receipts.
select (select max(m.version) from /*schema*/migration as m) as version,
       (select count(*) from /*schema*/outbox) as events,
       (select count(*) from /*schema*/event_handled) as receipts,
       (select count(distinct l.virtualtransaction) from pg_locks as l
        where l.database = (select d.oid from pg_database as d where d.datname = current_database())
          and l.mode = 'RowExclusiveLock' and l.granted and l.pid is distinct from pg_backend_pid()
          and l.relation in ('/*schema*/outbox'::regclass, '/*schema*/job'::regclass)) as publishing
