-- rename a subscription; how many receipts moved. See admin/functions/rename.sql.
select /*schema*/rename(%(old)s::text, %(new)s::text, %(force)s::bool, %(by)s::text, %(reason)s::text)
