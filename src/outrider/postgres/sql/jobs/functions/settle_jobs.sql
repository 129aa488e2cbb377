-- settle_jobs: what became of jobs that a worker had claimed. Each names its lease; a job whose lease is another's, or
-- nobody's, is not touched and not in the answer: whoever asks sees what landed. One row without a number: all of p_done.
-- held: another transaction has locked the job, or is enqueuing its unique key. Nothing has changed; ask again.
-- p_names: the types that they are of.
-- p_done, p_tokens, p_results: those that are done, with their leases and results. They go: see settle_done.
-- p_others: [{delivery, token, verdict, delay, code, message, counted, traceback}], see release.
-- Locks:  the jobs. It waits 20 ms for the first one that is held, and 1 ms for each other: one transaction may hold them all.
create or replace function /*schema*/settle_jobs(
    p_names text[], p_done bigint[], p_tokens bigint[], p_results jsonb[], p_others jsonb, p_worker text
) returns table (delivery bigint, outcome text)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
    set lock_timeout = '20ms'
as $$
#variable_conflict use_column
declare
    limited text[];
    asked   record;
    job     /*schema*/job;
    landed  bigint[] := '{}';
    held    bigint[] := '{}';
begin
    perform /*schema*/sees_all();
    begin
        landed := /*schema*/settle_done(p_names, p_done, p_tokens, p_results);
    exception when lock_not_available then
        for place in 1..cardinality(p_done) loop
            begin
                landed := landed || /*schema*/settle_done(
                    p_names, p_done[place:place], p_tokens[place:place], p_results[place:place]);
            exception when lock_not_available then
                held := held || p_done[place];
                perform set_config('lock_timeout', '1ms', true);
            end;
        end loop;
    end;
    if cardinality(landed) = cardinality(p_done) then
        outcome := 'done';
        return next;
    else
        return query select l.id, 'done' from unnest(landed) as l (id) union all select h.id, 'held' from unnest(held) as h (id);
    end if;

    for asked in
        select o.* from jsonb_to_recordset(p_others) as o (
            delivery bigint, token bigint, verdict text, delay double precision, code text, message text, counted boolean,
            traceback text)
        order by o.delivery
    loop
        begin
            select d.* into job from /*schema*/job as d
            where d.id = asked.delivery and d.lease_token = asked.token and d.status = 'in_flight'
            for no key update;
            continue when not found;
            if asked.verdict in ('later', 'dead') then
                job.last_traceback := left(asked.traceback, 4096);
            end if;
            delivery := asked.delivery;
            outcome := /*schema*/release(
                job, asked.verdict, coalesce(asked.delay, 0), asked.code, asked.message, coalesce(asked.counted, true),
                p_worker);
        exception when lock_not_available then
            delivery := asked.delivery;
            outcome := 'held';
            perform set_config('lock_timeout', '1ms', true);
        end;
        return next;
    end loop;
    -- There is room again. Not only where somebody is seen to wait for it: a claim that counts these jobs may be under way.
    limited := array(
        select s.name from /*schema*/subscription as s
        where s.name = any (p_names) and (s.concurrency is not null or s.key_concurrency is not null));
    if limited <> '{}' then
        perform /*schema*/wake_jobs(limited);
    end if;
end
$$;
