-- log_holders: who uses the log at this moment, so that upkeep could not lock it. Reads only the lock table.
create or replace function /*schema*/log_holders() returns text
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    select 'the log is in use by ' || coalesce(string_agg(held.who, ', ' order by held.who), 'somebody who is gone now')
    from (select distinct case when l.pid is null then 'a prepared transaction' else 'process ' || l.pid end as who
          from pg_locks as l
          where l.relation = '/*schema*/outbox'::regclass and l.granted and l.pid is distinct from pg_backend_pid()
            and l.database = (select d.oid from pg_database as d where d.datname = current_database())
          limit 5) as held
$$;
