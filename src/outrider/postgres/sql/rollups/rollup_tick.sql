-- rollup_tick: one tick of a rollup; see the function.
select /*schema*/rollup_tick(%(name)s, %(flush)s)
