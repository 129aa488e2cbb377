-- tenants_plan: see admin/functions/tenants_plan.sql.
select t.command from /*schema*/tenants_plan(%(enable)s::boolean, %(roles)s::text[]) as t
