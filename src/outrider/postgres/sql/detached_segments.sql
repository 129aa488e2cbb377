-- detached_segments: tables that were segments of the log, and can be again.
select c.relname::text from pg_class as c
where c.relnamespace = (select l.relnamespace from pg_class as l where l.oid = '/*schema*/outbox'::regclass)
  and c.relname ~ '^outbox_(s[0-9]+|tail)' and c.relkind = 'r' and not c.relispartition
order by 1
