-- rollup_install: install a rollup, or its new declaration.
select /*schema*/rollup_install(%(spec)s::jsonb)
