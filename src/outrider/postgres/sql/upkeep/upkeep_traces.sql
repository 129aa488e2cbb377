-- upkeep_traces: one step of upkeep, in a transaction of its own. See upkeep/functions/upkeep_traces.sql.
select action, subject, number, detail from /*schema*/upkeep_traces(%(dry)s)
