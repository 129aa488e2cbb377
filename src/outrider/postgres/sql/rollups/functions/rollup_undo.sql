-- rollup_undo: what uninstalling must undo of an install that is about to run: the columns that it will add, and the CHECK constraints
-- that it will replace, as they are now. What an earlier install has noted (p_noted) is left out. Reads only.
create or replace function /*schema*/rollup_undo(p_spec jsonb, p_noted jsonb) returns jsonb
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    with change as (
        select 'column' as kind, c ->> 'table' as source, c ->> 'name' as name, place,
               c || jsonb_build_object('kind', 'column', 'oid', to_regclass(c ->> 'table')::oid::bigint) as note
        from jsonb_array_elements(p_spec -> 'columns') with ordinality as item (c, place)
        where not exists (select from pg_attribute as a where a.attrelid = to_regclass(c ->> 'table')
                            and a.attname = c ->> 'name' and not a.attisdropped)
        union all
        select 'check', c ->> 'table', c ->> 'name', place,
               c || jsonb_build_object('kind', 'check', 'oid', k.conrelid::bigint, 'definition', pg_get_constraintdef(k.oid),
                                       'before', pg_get_expr(k.conbin, k.conrelid))
        from jsonb_array_elements(p_spec -> 'checks') with ordinality as item (c, place)
        join pg_constraint as k on k.conrelid = to_regclass(c ->> 'table') and k.conname = c ->> 'name'
    )
    select coalesce(jsonb_agg(change.note order by change.kind = 'check', change.place), '[]') from change
    where not exists (
        select from jsonb_array_elements(p_noted) as noted
        where noted ->> 'kind' = change.kind and noted ->> 'table' = change.source and noted ->> 'name' = change.name)
$$;
