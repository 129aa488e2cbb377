-- wal: replication slots: how many bytes of WAL each keeps, whether somebody reads it, and its state; the largest first.
select s.slot_name, s.active, s.wal_status, k.bytes::bigint,
       pg_size_pretty(k.bytes) as size, format('select pg_drop_replication_slot(%L)', s.slot_name) as ends
from pg_replication_slots as s
cross join lateral (
    select pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_receive_lsn() else pg_current_wal_lsn() end,
                           s.restart_lsn) as bytes) as k
where s.restart_lsn is not null or s.wal_status = 'lost'
order by k.bytes desc nulls last limit 20
