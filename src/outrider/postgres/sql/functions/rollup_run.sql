-- rollup_run: a tick by hand: rollup_tick, in the audit with what came of it.
create or replace function /*schema*/rollup_run(
    p_name text, p_flush boolean default false, p_by text default null, p_reason text default null
) returns jsonb
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    told jsonb := /*schema*/rollup_tick(p_name, p_flush);
begin
    perform /*schema*/note('rollup_run', p_by, p_reason, null, null, jsonb_strip_nulls(jsonb_build_object(
        'rollup', p_name, 'flushed', nullif(p_flush, false), 'result', told -> 'result', 'events',
        coalesce((told ->> 'groups_emitted')::bigint, 0) + coalesce((told ->> 'pieces_emitted')::bigint, 0))));
    return told;
end
$$;
