-- park what failed, and excuse the rollback. See handlers/functions/park.sql.
select /*schema*/park(
    %(subscription)s::text, %(cursor)s::bigint, %(failed)s::text::jsonb, %(armed)s::bigint, %(worker)s::text)
