-- resume: a subscription goes on. See admin/functions/resume.sql.
select /*schema*/resume(%(name)s::text, %(by)s::text, %(reason)s::text)
