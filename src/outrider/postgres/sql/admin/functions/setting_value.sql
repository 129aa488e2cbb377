-- setting_value: one setting of the database; null when it is not there.
create or replace function /*schema*/setting_value(p_name text) returns bigint
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select s.value from /*schema*/setting as s where s.name = p_name
$$;
