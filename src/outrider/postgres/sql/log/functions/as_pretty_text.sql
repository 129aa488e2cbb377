-- as_pretty_text: a payload as text on many lines, for people to read. Empty if it cannot be read: see as_text.
create or replace function /*schema*/as_pretty_text(p_value jsonb) returns text
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    said text;
begin
    said := jsonb_pretty(p_value);
    return case when octet_length(said) > 134217728 then '' else said end;
exception when program_limit_exceeded then
    return '';
end
$$;
