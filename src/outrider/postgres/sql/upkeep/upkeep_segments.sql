-- upkeep_segments: one step of upkeep, in a transaction of its own. See upkeep/functions/upkeep_segments.sql.
select action, subject, number, detail from /*schema*/upkeep_segments(%(dry)s)
