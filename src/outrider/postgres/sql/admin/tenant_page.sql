-- tenant_page: see admin/functions/tenant_page.sql.
select t.place, t.erased, t.line from /*schema*/tenant_page(
    %(workspace_id)s::text, %(kind)s::text, %(subject)s::text, %(jobs)s::boolean, %(part)s::text, %(after)s::bigint,
    %(scan)s::integer) as t
