-- rollup_run: one tick of a rollup by hand; see the function.
select /*schema*/rollup_run(%(name)s, %(flush)s, %(by)s, %(reason)s)
