-- admit_scheduled: make jobs claimable whose time has come, at most 1,000 of each type. For claim: every worker of a type does it
-- for all queues, so that nobody has to be notified.
-- Locks:  those jobs, SKIP LOCKED. Not against a transaction that keeps one (FOR KEY SHARE).
-- Reads:  job_scheduled: what has become due, and the first of what has not.
-- Returns when to look again: at once if there were more, in a second if others hold one; null = nothing is scheduled.
create or replace function /*schema*/admit_scheduled(p_names text[], p_moment timestamptz) returns timestamptz
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
declare
    next_at  timestamptz;
    admitted bigint;
begin
    next_at := (
        select min(next.run_at) from unnest(p_names) as n (name)
        cross join lateral (
            select j.run_at from /*schema*/job as j
            where j.subscription = n.name and j.waits_for = 'time' order by j.run_at limit 1) as next);
    if (next_at <= p_moment) is not true then
        return next_at;
    end if;
    with due as materialized (
        select picked.place from unnest(p_names) as n (name)
        cross join lateral (
            select j.ctid as place from /*schema*/job as j
            where j.subscription = n.name and j.waits_for = 'time' and j.run_at <= p_moment
            order by j.run_at, j.id limit 1000 for no key update skip locked) as picked
    )
    update /*schema*/job as j set waits_for = null from due where j.ctid = due.place;
    get diagnostics admitted = row_count;
    next_at := (
        select min(next.run_at) from unnest(p_names) as n (name)
        cross join lateral (
            select j.run_at from /*schema*/job as j
            where j.subscription = n.name and j.waits_for = 'time' order by j.run_at limit 1) as next);
    return case when (next_at <= p_moment) is not true then next_at
                when admitted > 0 then p_moment
                else p_moment + interval '1 second' end;
end
$$;
