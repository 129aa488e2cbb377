-- upkeep_begin: whether it is this session's turn. See upkeep/functions/upkeep_begin.sql.
select /*schema*/upkeep_begin(%(every)s::interval)
