-- owes: whether a cursor still has to read an event in this range of positions: fresh, late, or in a page of what it owes.
-- The rule is that of read: an event whose transaction was unfinished when the cursor passed counts as unread.
-- Reads:  outbox by seq and by (tx, seq), a few probes.
-- STABLE on purpose: it must see exactly the snapshot of the statement that calls it.
create or replace function /*schema*/owes(p_cursor /*schema*/cursor, p_first bigint, p_last bigint) returns boolean
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
declare
    finished pg_snapshot := case
        -- Restored from elsewhere, where all its transactions are over.
        when p_cursor.cluster <> (select /*schema*/log_home())
             or p_cursor.horizon >= pg_snapshot_xmax(pg_current_snapshot())
        then '9223372036854775807:9223372036854775807:'::pg_snapshot else pg_current_snapshot() end;
begin
    return exists (select from /*schema*/outbox as o
                   where o.seq > greatest(p_cursor.seq, p_first - 1) and o.seq <= p_last)
        or exists (select from unnest(p_cursor.owing) as owing (tx),
                   lateral (select from /*schema*/outbox as o
                            where (o.tx, o.seq) > (owing.tx, greatest(p_cursor.owed_after, p_first - 1))
                              and (o.tx, o.seq) <= (owing.tx, least(p_cursor.seq, p_last))
                              and o.seq between p_first and p_last
                            order by o.tx, o.seq limit 1) as one)
        or exists (select from /*schema*/late_transactions(
                       p_cursor.inflight, p_cursor.horizon, finished, greatest(p_cursor.floor, p_first - 1),
                       least(p_cursor.seq, p_last)));
end
$$;
