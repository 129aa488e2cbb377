-- upkeep_dead_letters: one step of upkeep, in a transaction of its own. See upkeep/functions/upkeep_dead_letters.sql.
select action, subject, number, detail from /*schema*/upkeep_dead_letters(%(dry)s)
