-- rollup_parts: the SQL fragments from which a rollup's functions are built, made from its declaration: the table (null for events),
-- the condition, the look-up of the parent, what is staged of `new` (a row of the table or of the log) and `parent`, and who ticks.
-- Expressions are the installer's own SQL.
create or replace function /*schema*/rollup_parts(
    p_spec jsonb, out slug text, out source regclass, out parent regclass, out parent_on text, out condition text,
    out workspace text, out group_key text, out carried text, out key_table regclass, out key_columns text[],
    out scheduler text, out job text
)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    as_text constant text := case when p_spec ->> 'table' is null then 'new.payload ->> %L' else 'new.%I' end;
    as_json constant text := case when p_spec ->> 'table' is null then 'new.payload -> %L' else 'new.%I' end;
begin
    slug := replace(p_spec ->> 'name', '.', '_');
    source := to_regclass(p_spec ->> 'table');
    parent := to_regclass(p_spec #>> '{parent,table}');
    parent_on := p_spec #>> '{parent,on}';
    condition := p_spec ->> 'when';
    workspace := coalesce(p_spec ->> 'workspace', case when p_spec ->> 'table' is null then 'new.workspace_id'
                                                       else 'current_setting(''app.workspace_id'', true)' end);
    key_table := source;
    if jsonb_typeof(p_spec -> 'key') = 'array' then
        key_columns := array(select jsonb_array_elements_text(p_spec -> 'key'));
        group_key := (select format('coalesce(%s)', string_agg(format('nullif((' || as_text || ')::text, '''')', name), ', '))
                      from unnest(key_columns) as name);
    else
        group_key := p_spec ->> 'key';
        key_columns := array(select lower(word[1]) from regexp_matches(group_key, '\mnew\.(\w+)', 'gi') as word);
        if key_columns = '{}' and parent is not null then
            key_table := parent;
            key_columns := array(select lower(word[1]) from regexp_matches(group_key, '\mparent\.(\w+)', 'gi') as word);
        end if;
    end if;
    -- Names of columns, or of fields with an expression each.
    carried := (select format('jsonb_build_object(%s)', string_agg(format('%L, %s', field.name, field.value), ', '))
                from (select name, format(as_json, name) as value from jsonb_array_elements_text(
                          case jsonb_typeof(p_spec -> 'carry') when 'array' then p_spec -> 'carry' end) as name
                      union all
                      select name, format('(%s)', expression) from jsonb_each_text(
                          case jsonb_typeof(p_spec -> 'carry') when 'object' then p_spec -> 'carry' end)
                          as given (name, expression)) as field);
    scheduler := case when p_spec ->> 'scheduler' <> 'worker' and exists (select from pg_extension where extname = 'pg_cron')
                      then 'cron' else 'worker' end;
    job := format('%s.rollup.%s', trim(both '".' from '/*schema*/'), p_spec ->> 'name');
end
$$;
