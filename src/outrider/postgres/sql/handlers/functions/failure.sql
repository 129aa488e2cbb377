-- failure: one entry of a delivery's failure_history. worker and batch identify the take, so a failure reported twice counts once.
create or replace function /*schema*/failure(
    p_cycle integer, p_attempt integer, p_code text, p_message text, p_worker text, p_batch text default null
) returns jsonb
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'cycle', p_cycle, 'attempt', p_attempt, 'at', clock_timestamp(), 'code', p_code, 'message', p_message,
        'worker', p_worker, 'batch', p_batch))
$$;
