-- canary_handled: the server's time in seconds, if a worker has settled this canary. By primary key.
select extract(epoch from clock_timestamp())::float8 from /*schema*/event_handled as h where h.handler_name = %(name)s
