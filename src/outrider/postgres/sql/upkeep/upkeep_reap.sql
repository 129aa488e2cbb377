-- upkeep_reap: one step of upkeep, in a transaction of its own. See upkeep/functions/upkeep_reap.sql.
select action, subject, number, detail from /*schema*/upkeep_reap(%(dry)s)
