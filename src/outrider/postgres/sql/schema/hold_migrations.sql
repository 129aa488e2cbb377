-- hold_migrations: let only one session at a time migrate, remove or grant in a schema, until the transaction ends.
-- An advisory lock, because the schema may not exist yet. Anybody who can connect can hold it, so the wait is bounded, and the
-- error names the holder. A block of PL/pgSQL; {schema} and {patience} are filled in.
declare
    v_before constant text := current_setting('lock_timeout');
    v_key    constant bigint := hashtextextended('outrider.migrate.{schema}', 0);
begin
    perform set_config('lock_timeout', '{patience}', true);
    perform pg_advisory_xact_lock(v_key);
    perform set_config('lock_timeout', v_before, true);
exception when lock_not_available then
    raise lock_not_available using
        message = format('another session has held the lock of migrations of "{schema}" for {patience} or longer: %s', coalesce((
            select string_agg(format('process %s (user %s, %s, %s%s)', l.pid, coalesce(a.usename, 'unknown'),
                                     coalesce(nullif(a.application_name, ''), 'no application_name'), coalesce(a.state, 'unknown'),
                                     ' since ' || date_trunc('second', coalesce(a.xact_start, a.state_change))), '; ')
            from pg_locks as l left join pg_stat_activity as a on a.pid = l.pid
            where l.locktype = 'advisory' and l.granted and l.objsubid = 1
              and l.database = (select d.oid from pg_database as d where d.datname = current_database())
              and (l.classid::bigint << 32 | l.objid::bigint) = v_key), 'nobody any more')),
        hint = 'If it is migrating, wait for it. If not, end it: select pg_terminate_backend(PID).';
end;
