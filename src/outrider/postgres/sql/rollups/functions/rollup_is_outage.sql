-- rollup_is_outage: whether this SQLSTATE says nothing about the rows: deadlocks, missing resources, locks, an operator, the system,
-- and missing or changed objects. A row that the role may not write is different: it is refused for that row.
create or replace function /*schema*/rollup_is_outage(p_sqlstate text) returns boolean
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
    as $$ select p_sqlstate ~ '^(08|25|40|42|53|55|57|58|XX)' and p_sqlstate <> '42501' $$;
