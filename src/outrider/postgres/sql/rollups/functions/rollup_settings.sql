-- rollup_settings: the settings in force for a rollup: what an operator entered, else what was declared, within limits.
-- A value that is no number, or beyond a limit, is reported.
create or replace function /*schema*/rollup_settings(
    p_name text, out debounce interval, out threshold integer, out max_wait interval, out complaints text[]
)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    item  record;
    asked numeric;
    given bigint;
begin
    complaints := '{}';
    for item in
        select known.suffix, s.name, coalesce(s.value, known.value) as value, s.entered,
               coalesce(s.least, known.least) as least, coalesce(s.greatest, known.greatest) as greatest
        from (values ('debounce_seconds', 90, 60, 300), ('batch_threshold', 2, 2, 50),
                     ('max_wait_seconds', 600, 60, 86400)) as known (suffix, value, least, greatest)
        left join /*schema*/setting as s on s.name = 'rollup.' || p_name || '.' || known.suffix
    loop
        given := item.value;
        if item.entered ~ '^[[:space:]]*[+-]?[0-9]{1,18}[[:space:]]*$' then
            asked := item.entered::numeric;
            given := greatest(item.least, least(item.greatest, asked));
            if given <> asked then
                complaints := complaints || format('the setting %s is %s: %s is used, the limits are %s and %s',
                                                   item.name, trim(item.entered), given, item.least, item.greatest);
            end if;
        elsif item.entered is not null then
            complaints := complaints || format('the setting %s is %L, which is no whole number: the default, %s, is used',
                                               item.name, left(item.entered, 100), given);
        end if;
        case item.suffix
            when 'debounce_seconds' then debounce := make_interval(secs => given);
            when 'batch_threshold' then threshold := given;
            else max_wait := make_interval(secs => given);
        end case;
    end loop;
    max_wait := greatest(max_wait, debounce);
end
$$;
