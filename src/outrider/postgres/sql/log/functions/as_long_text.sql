-- as_long_text: as_text for a long value. Empty if the text is longer than writers may store, or than a session can hold.
create or replace function /*schema*/as_long_text(p_value jsonb) returns text
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    said text;
begin
    said := p_value::text;
    return case when octet_length(said) > 134217728 then '' else said end;
exception when program_limit_exceeded then
    return '';
end
$$;
