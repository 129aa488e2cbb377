-- debts: the reasons why a segment cannot be detached yet, one per row; none if nobody needs it.
-- Exact while the log is locked; before that, a good guess that disturbs nobody.
-- Reads:  cursors and the marks of relays, each with a few probes of the log; delivery and job by (subscription, seq); the lock table.
create or replace function /*schema*/debts(p_segment /*schema*/segment) returns setof text
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set jit = off
as $$
begin
    return query
    select format('a transaction that has published into it is open (%s)',
                  coalesce('process ' || l.pid, 'prepared'))
    from pg_locks as l
    where l.relation = format('/*schema*/%I', p_segment.name)::regclass and l.mode = 'RowExclusiveLock' and l.granted
      and l.database = (select d.oid from pg_database as d where d.datname = current_database())
      and l.pid is distinct from pg_backend_pid();
    return query
    select format('%s%s has not read it', c.subscription, case when c.generation <> 0 then ' (generation ' || c.generation || ')' end)
    from /*schema*/cursor as c where /*schema*/owes(c, p_segment.first_seq, p_segment.last_seq)
    group by c.subscription, c.generation order by c.subscription, c.generation;
    return query
    select format('the relay %s may go back to its mark of %s', m.subscription, date_trunc('second', min(m.at)))
    from (select m.*, jsonb_populate_record(null::/*schema*/cursor, m.cursor) as place from /*schema*/stream_mark as m) as m
    -- There may be thousands of marks, and most are past the segment: for those nothing is looked up.
    where case when least((m.place).seq, (m.place).floor) >= p_segment.last_seq
                    and ((m.place).owing = '{}' or (m.place).owed_after >= p_segment.last_seq) then false
               else /*schema*/owes(m.place, p_segment.first_seq, p_segment.last_seq) end
    group by m.subscription order by m.subscription;
    return query
    select distinct format('the relay %s may have to send a dead letter of it again', r.subscription)
    from /*schema*/stream_replayed as r where r.seq between p_segment.first_seq and p_segment.last_seq;
    return query
    select format('%s has %s of it', s.name, concat_ws(' and ',
                  case when found.dead > 0 then found.dead || ' dead letters' end,
                  case when found.owed > 0 then found.owed || ' events that wait' end))
    from /*schema*/subscription as s cross join lateral (
        select count(*) filter (where d.status = 'failed') as dead,
               count(*) filter (where d.status in ('pending', 'in_flight')) as owed
        from (select d.status from /*schema*/owed as d
              where d.subscription = s.name and d.seq between p_segment.first_seq and p_segment.last_seq
                and d.status in ('pending', 'in_flight', 'failed')
              limit 10000) as d) as found
    where found.dead + found.owed > 0 order by s.name;
end
$$;
