-- open_generation: cursors of its own for a generation. See handlers/functions/open_generation.sql.
select /*schema*/open_generation(%(subscription)s::text, %(generation)s::bigint)
