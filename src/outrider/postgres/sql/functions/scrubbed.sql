-- scrubbed: a failure history without what errors said, which may quote a payload.
create or replace function /*schema*/scrubbed(p_history jsonb) returns jsonb
    language sql immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case when jsonb_typeof(p_history) = 'array' then coalesce(
        (select jsonb_agg(entry.value - 'message' - 'reason' order by entry.place)
         from jsonb_array_elements(p_history) with ordinality as entry (value, place)), '[]') end
$$;
