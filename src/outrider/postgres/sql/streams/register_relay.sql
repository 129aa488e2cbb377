-- register_relay: see streams/functions/register_relay.sql.
select /*schema*/register_relay(%(name)s::text, %(workspace_id)s::text, %(forwards)s::bool)
