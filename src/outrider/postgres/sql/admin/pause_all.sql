-- pause_all: nobody takes from any subscription. See admin/functions/pause_all.sql.
select /*schema*/pause_all(%(by)s::text, %(reason)s::text)
