-- registered_relay: whose events a relay sends, as the table has it.
select workspace_id, forwards from /*schema*/subscription where name = %(name)s
