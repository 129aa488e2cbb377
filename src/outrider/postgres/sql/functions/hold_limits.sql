-- hold_limits: whoever claims jobs of a type that is limited does it alone, until the transaction ends. First of all, before
-- any job is locked, and in the order of the names: so nobody waits for another in a circle.
create or replace function /*schema*/hold_limits(p_names text[]) returns void
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    select pg_advisory_xact_lock(hashtextextended('/*schema*/' || limited.name, 6))
    from (select s.name from /*schema*/subscription as s
          where s.name = any (p_names) and (s.concurrency is not null or s.key_concurrency is not null)
          order by s.name) as limited
$$;
