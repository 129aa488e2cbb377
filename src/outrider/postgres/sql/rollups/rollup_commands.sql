-- rollup_commands: what installing it would do beside our own rows.
select c.command from /*schema*/rollup_commands(%(spec)s::jsonb) as c
