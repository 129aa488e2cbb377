-- note_export: see admin/functions/note_export.sql.
select /*schema*/note_export(
    %(workspace_id)s::text, %(kind)s::text, %(subject)s::text, %(by)s::text, %(reason)s::text, %(audit)s::bigint,
    %(events)s::bigint, %(jobs)s::bigint)
