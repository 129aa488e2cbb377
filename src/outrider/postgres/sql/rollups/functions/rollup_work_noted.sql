-- rollup_work_noted: rollup_work, audited with its result. Called by rollup_run.
create or replace function /*schema*/rollup_work_noted(p_name text, p_flush boolean, p_by text, p_reason text) returns jsonb
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    told jsonb := /*schema*/rollup_work(p_name, p_flush);
begin
    perform /*schema*/note('rollup_run', p_by, p_reason, null, null, jsonb_strip_nulls(jsonb_build_object(
        'rollup', p_name, 'flushed', nullif(p_flush, false), 'result', told -> 'result', 'events',
        coalesce((told ->> 'groups_emitted')::bigint, 0) + coalesce((told ->> 'pieces_emitted')::bigint, 0))));
    return told;
end
$$;
