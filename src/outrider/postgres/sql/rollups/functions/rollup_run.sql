-- rollup_run: tick a rollup by hand: rollup_tick, audited with its result.
create or replace function /*schema*/rollup_run(
    p_name text, p_flush boolean default false, p_by text default null, p_reason text default null
) returns jsonb
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    set constraints all immediate;  -- as in rollup_tick, with the caller's rights
    return /*schema*/rollup_work_noted(p_name, p_flush, p_by, p_reason);
end
$$;
