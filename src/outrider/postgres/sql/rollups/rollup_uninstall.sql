-- rollup_uninstall: take a rollup off; what was done.
select u.step, u.action, u.what, u.command, u.why from /*schema*/rollup_uninstall(%(name)s, %(force)s) as u order by u.step
