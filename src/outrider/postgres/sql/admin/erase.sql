-- erase: see admin/functions/erase.sql.
select e.place, e.audit, e.events, e.jobs from /*schema*/erase(
    %(workspace_id)s::text, %(kind)s::text, %(subject)s::text, %(jobs)s::boolean, %(part)s::text, %(after)s::bigint,
    %(scan)s::integer, %(reason)s::text, %(by)s::text, %(audit)s::bigint) as e
