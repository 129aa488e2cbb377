-- setting_value: the value of one setting; null if it does not exist.
create or replace function /*schema*/setting_value(p_name text) returns bigint
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select s.value from /*schema*/setting as s where s.name = p_name
$$;
