-- handled: how many receipts were ever inserted, by the server's statistics: also those that were rolled back. Reads no table.
select pg_stat_get_tuples_inserted('/*schema*/event_handled'::regclass)
