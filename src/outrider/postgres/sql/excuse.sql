-- excuse a rollback. See functions/excuse.sql.
select /*schema*/excuse(%(cursor)s::bigint, %(armed)s::bigint)
