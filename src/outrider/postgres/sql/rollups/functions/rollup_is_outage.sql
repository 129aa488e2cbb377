-- rollup_is_outage: whether an error by this SQLSTATE says nothing about the rows: deadlocks, no resources, locks, an operator,
-- the system; and what is missing or not what it was (but who may not write one row, row by row, is refused for that row).
create or replace function /*schema*/rollup_is_outage(p_sqlstate text) returns boolean
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
    as $$ select p_sqlstate ~ '^(08|25|40|42|53|55|57|58|XX)' and p_sqlstate <> '42501' $$;
