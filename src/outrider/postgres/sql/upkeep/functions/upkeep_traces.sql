-- upkeep_traces: delete audit entries older than retention.audit_days, and withdrawals of events that are in no segment any more.
-- At most p_limit of each.
-- Reads:  both by primary key, from the oldest on.
-- Returns `more`: call again.
create or replace function /*schema*/upkeep_traces(p_dry boolean default false, p_limit integer default 5000)
    returns setof /*schema*/upkept
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '200ms'
    set enable_seqscan = off
    set jit = off
as $$
declare
    before  timestamptz := clock_timestamp() - make_interval(days => /*schema*/setting_value('retention.audit_days')::integer);
    below   bigint := (select min(s.first_seq) from /*schema*/segment as s);
    audits  bigint[];
    seqs    bigint[];
begin
    if (p_limit between 1 and 10000) is not true then
        raise 'a step of upkeep is 1 to 10000, not %', p_limit using errcode = 'OR009';
    end if;
    if not /*schema*/upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::/*schema*/upkept;
        return;
    end if;
    audits := array(select oldest.id from (select a.id, a.at from /*schema*/audit as a order by a.id limit p_limit) as oldest
                    where oldest.at < before);
    seqs := array(select w.seq from /*schema*/withdrawal as w where w.seq < below order by w.seq limit p_limit);
    if not p_dry then
        delete from /*schema*/audit as a where a.id = any (audits);
        delete from /*schema*/withdrawal as w where w.seq = any (seqs);
    end if;
    if audits <> '{}' then
        return next ('expired', 'audit', cardinality(audits), format('before %s', date_trunc('second', before)))::/*schema*/upkept;
    end if;
    if seqs <> '{}' then
        return next ('expired', 'withdrawals', cardinality(seqs), format('below %s', below))::/*schema*/upkept;
    end if;
    if greatest(cardinality(audits), cardinality(seqs)) = p_limit and not p_dry then
        return next ('more', 'traces', 0, null)::/*schema*/upkept;
    end if;
end
$$;
