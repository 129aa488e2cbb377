-- park_again: events that were parked already and failed in a batch that was rolled back: counted, due later, or buried.
-- p_failed: as in take; events that are not parked, or whose attempt is counted already (its commit was answered by
-- silence), are left alone. Returns the numbers of those that were not. The caller holds the cursor's lock.
create or replace function /*schema*/park_again(p_subscription text, p_failed jsonb, p_worker text) returns bigint[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    lines text[];
    told  bigint[];
begin
    with again as (
        update /*schema*/delivery as d
        set attempts        = d.attempts + f.counted::integer,
            run_at          = now() + f.delay * interval '1 second',
            status          = case when f.dead then 'failed' else d.status end,
            head            = d.head and not f.dead,
            suspect         = false,
            crashes         = 0,
            last_error_code = f.code,
            last_error      = f.message,
            first_failed_at = coalesce(d.first_failed_at, now()),
            -- The newest say most.
            failure_history = (case when jsonb_array_length(d.failure_history) >= 100 then d.failure_history - 0
                                    else d.failure_history end)
                              || /*schema*/failure(d.cycle, d.attempts + f.counted::integer, f.code, f.message, p_worker)
        from jsonb_to_recordset(p_failed) as f (
            seq bigint, attempt integer, delay double precision, code text, message text, counted boolean, dead boolean)
        where d.subscription = p_subscription and d.seq = f.seq and d.status = 'pending' and d.attempts = f.attempt - 1
        returning d.seq, d.ordering_key
    )
    select coalesce(array_agg(again.seq), '{}'),
           array_agg(distinct again.ordering_key) filter (where again.ordering_key is not null)
    into told, lines from again;
    perform /*schema*/promote(p_subscription, lines);
    return told;
end
$$;
