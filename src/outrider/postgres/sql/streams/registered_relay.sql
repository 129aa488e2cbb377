-- registered_relay: whose events a relay sends, as it is registered.
select workspace_id, forwards from /*schema*/subscription where name = %(name)s
