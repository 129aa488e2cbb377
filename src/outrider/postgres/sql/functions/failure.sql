-- failure: one entry of a delivery's failure_history.
create or replace function /*schema*/failure(p_cycle integer, p_attempt integer, p_code text, p_message text, p_worker text)
    returns jsonb
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('cycle', p_cycle, 'attempt', p_attempt, 'at', clock_timestamp(), 'code', p_code,
                              'message', p_message, 'worker', p_worker)
$$;
