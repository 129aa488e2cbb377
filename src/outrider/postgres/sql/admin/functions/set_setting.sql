-- set_setting: change a setting, within its limits. For the setting of a rollup, null restores what was declared.
-- Audited with the old value. 'paused' is refused: see pause_all.
create or replace function /*schema*/set_setting(
    p_name text, p_value text, p_by text default null, p_reason text default null
) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    found_one /*schema*/setting;
    rollups   boolean := starts_with(p_name, 'rollup.');
begin
    select s.* into found_one from /*schema*/setting as s where s.name = p_name for update;
    if not found then
        raise 'there is no setting %', quote_nullable(left(p_name, 100)) using errcode = 'OR010';
    end if;
    if p_name = 'paused' then
        raise 'use `outrider subscription pause --all` and `resume --all` to pause and resume everything'
            using errcode = 'OR010';
    end if;
    if p_value is null and not rollups then
        raise 'the setting % needs a value', p_name using errcode = 'OR010';
    end if;
    if (case when p_value ~ '^[[:space:]]*[+-]?[0-9]{1,18}[[:space:]]*$' then p_value::bigint not between found_one.least and found_one.greatest
             else p_value is not null end) then
        raise 'the setting % must be a whole number from % to %, not %', p_name, found_one.least, found_one.greatest,
            quote_nullable(left(p_value, 100)) using errcode = 'OR010';
    end if;
    update /*schema*/setting as s
    set value = case when rollups then s.value else p_value::bigint end,
        entered = case when rollups then trim(p_value) else s.entered end, updated_at = now()
    where s.name = p_name;
    perform /*schema*/note('set_setting', p_by, p_reason, null, null, jsonb_build_object(
        'setting', p_name, 'value', p_value::bigint,
        'before', case when rollups then to_jsonb(found_one.entered) else to_jsonb(found_one.value) end));
end
$$;
