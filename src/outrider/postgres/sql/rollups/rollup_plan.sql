-- rollup_plan: what uninstalling it would do.
select p.step, p.action, p.what, p.command, p.why from /*schema*/rollup_plan(%(name)s, %(force)s) as p order by p.step
