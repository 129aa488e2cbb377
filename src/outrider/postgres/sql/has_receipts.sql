-- has_receipts: whether events were handled under this name. By the primary key.
select exists (select from /*schema*/event_handled where handler_name = %(name)s)
