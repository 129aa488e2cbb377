-- rollup_undo_made: these notes of rollup_undo, with each CHECK constraint as install has made it. Uninstall leaves a constraint alone
-- that is different by then. Reads only.
create or replace function /*schema*/rollup_undo_made(p_spec jsonb, p_noted jsonb) returns jsonb
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_agg(case when made.c is null then noted.note else noted.note || jsonb_build_object(
                                  'check', made.c ->> 'check', 'after', pg_get_constraintdef(k.oid)) end order by noted.place), '[]')
    from jsonb_array_elements(p_noted) with ordinality as noted (note, place)
    left join jsonb_array_elements(p_spec -> 'checks') as made (c)
        on noted.note ->> 'kind' = 'check' and made.c ->> 'table' = noted.note ->> 'table' and made.c ->> 'name' = noted.note ->> 'name'
    left join pg_constraint as k on k.conrelid = to_regclass(made.c ->> 'table') and k.conname = made.c ->> 'name'
$$;
