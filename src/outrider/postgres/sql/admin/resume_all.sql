-- resume_all: the pause of all is over. See admin/functions/resume_all.sql.
select /*schema*/resume_all(%(by)s::text, %(reason)s::text)
