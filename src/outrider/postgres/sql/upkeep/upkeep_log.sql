-- upkeep_log: one step of upkeep, in a transaction of its own. See upkeep/functions/upkeep_log.sql.
select action, subject, number, detail from /*schema*/upkeep_log(%(dry)s)
