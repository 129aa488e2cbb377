-- fold_generation: a generation without workers and without anything to read gives up its cursors. See handlers/functions/fold_generation.sql.
select /*schema*/fold_generation(%(subscription)s::text, %(generation)s::bigint)
