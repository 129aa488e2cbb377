-- attach_segment: back into the log, for some days. See upkeep/functions/attach_segment.sql.
select action, subject, number, detail
from /*schema*/attach_segment(%(name)s, %(days)s::integer, %(by)s, %(reason)s)
