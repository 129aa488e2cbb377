-- overdue_rollups: those that nobody ticks. See rollups/functions/overdue_rollups.sql.
select name from /*schema*/overdue_rollups() as name
