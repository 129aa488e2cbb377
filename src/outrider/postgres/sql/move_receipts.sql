-- move_receipts: what was handled under the old name counts as handled under the new one. By the primary key; every row
-- is written anew.
update /*schema*/event_handled set handler_name = %(new)s where handler_name = %(old)s
