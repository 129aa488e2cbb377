-- upkeep_receipts: one step of upkeep, in a transaction of its own. See upkeep/functions/upkeep_receipts.sql.
select action, subject, number, detail from /*schema*/upkeep_receipts(%(dry)s)
