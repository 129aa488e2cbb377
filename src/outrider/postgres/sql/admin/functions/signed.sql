-- signed: who the operator says they are, else the session's user; at most 200 characters.
create or replace function /*schema*/signed(p_by text) returns text
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select left(coalesce(nullif(p_by, ''), session_user::text), 200)
$$;
