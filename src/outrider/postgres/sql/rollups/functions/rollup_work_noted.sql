-- rollup_work_noted: rollup_work, in the audit with what came of it; see rollup_run, through which it is called.
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
