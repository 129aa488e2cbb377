-- upkeep_dead_letters: delete dead letters, discarded ones too, that are older than retention.dead_letter_days. At most p_limit.
-- Audited as counts, one row per subscription. One that its cursor has not passed stays: without it the event would be taken as new.
-- Locks:  the rows that it deletes, SKIP LOCKED.
-- Reads:  delivery and job by (coalesce(buried_at, created_at)), only dead letters.
-- Returns `more`: call again.
create or replace function /*schema*/upkeep_dead_letters(p_dry boolean default false, p_limit integer default 1000)
    returns setof /*schema*/upkept
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '200ms'
    set enable_seqscan = off
    set jit = off
as $$
declare
    before timestamptz := clock_timestamp()
                          - make_interval(days => /*schema*/setting_value('retention.dead_letter_days')::integer);
    events bigint[];
    jobs   bigint[];
    gone   bigint[];
begin
    if (p_limit between 1 and 10000) is not true then
        raise 'a step of upkeep is 1 to 10000, not %', p_limit using errcode = 'OR009';
    end if;
    if not /*schema*/upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::/*schema*/upkept;
        return;
    end if;
    events := array(select d.id from /*schema*/delivery as d
                    where d.status in ('failed', 'discarded') and coalesce(d.buried_at, d.created_at) < before and d.reached
                    order by coalesce(d.buried_at, d.created_at) limit p_limit for update skip locked);
    jobs := array(select j.id from /*schema*/job as j
                  where j.status in ('failed', 'discarded') and coalesce(j.buried_at, j.created_at) < before
                  order by coalesce(j.buried_at, j.created_at) limit p_limit - cardinality(events) for update skip locked);
    gone := events || jobs;
    if gone = '{}' then
        return;
    end if;
    return query
    select 'expired', 'dead letters of ' || d.subscription, count(*), format('buried before %s', date_trunc('second', before))
    from /*schema*/owed as d where d.id = any (gone) group by d.subscription order by d.subscription;
    if p_dry then
        return;
    end if;
    insert into /*schema*/audit (by, action, subscription, details)
    select 'upkeep', 'expire_dead_letters', d.subscription, jsonb_build_object(
        'dead_letters', count(*), 'buried_before', before, 'codes', jsonb_agg(distinct d.last_error_code))
    from /*schema*/owed as d where d.id = any (gone) group by d.subscription;
    delete from /*schema*/delivery as d where d.id = any (events);
    delete from /*schema*/job as j where j.id = any (jobs);
    if cardinality(gone) = p_limit then
        return next ('more', 'dead letters', 0, null)::/*schema*/upkept;
    end if;
end
$$;
