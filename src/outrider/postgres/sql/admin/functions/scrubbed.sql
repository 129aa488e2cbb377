-- scrubbed: a failure history with only the fields named here, because texts of errors and operators may quote a payload.
create or replace function /*schema*/scrubbed(p_history jsonb) returns jsonb
    language sql immutable
    set search_path = pg_catalog, pg_temp
as $$
    select case when jsonb_typeof(p_history) = 'array' then coalesce(
        (select jsonb_agg((
             select coalesce(jsonb_object_agg(field.key, field.value), '{}') from jsonb_each(entry.value) as field
             where field.key in ('cycle', 'attempt', 'at', 'code', 'worker', 'batch', 'by', 'replayed_at', 'forced', 'edited',
                                 'generation', 'discarded_at', 'cancelled_at', 'superseded_at')) order by entry.place)
         from jsonb_array_elements(p_history) with ordinality as entry (value, place)
         where jsonb_typeof(entry.value) = 'object'), '[]') end
$$;
