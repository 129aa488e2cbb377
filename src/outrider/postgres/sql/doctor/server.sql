-- server: the server's version and time, how full the notification queue is, how many connections are in use, and whether this role
-- sees the transactions of others.
select current_setting('server_version') as version, current_setting('server_version_num')::integer as version_number,
       clock_timestamp() as now, pg_notification_queue_usage() as queue,
       (select sum(d.numbackends)::integer from pg_stat_database as d) as connections,
       current_setting('max_connections')::integer as most_connections, pg_has_role('pg_read_all_stats', 'usage') as sees_all
