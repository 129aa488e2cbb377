-- rollup_missing: the steps of an uninstall whose object does not exist; none = the plan can be performed. Reads only.
with step as (
    select p.step, p.what, p.command from /*schema*/rollup_plan(%(name)s, %(force)s) as p where p.action = 'do'
),
undo as (
    select u.entry ->> 'table' as source, u.entry ->> 'name' as name, u.entry ->> 'kind' as kind
    from /*schema*/rollup as r cross join jsonb_array_elements(r.undo) as u (entry) where r.name = %(name)s
)
select step.step, step.what from step
where not case
    when starts_with(step.command, 'drop function ') then to_regprocedure(substr(step.command, 15)) is not null
    when starts_with(step.command, 'drop trigger ') then exists (
        select from pg_trigger as t join pg_class as c on c.oid = t.tgrelid join pg_namespace as n on n.oid = c.relnamespace
        where step.command = format('drop trigger %%I on %%I.%%I', t.tgname, n.nspname, c.relname))
    when starts_with(step.command, 'alter table ') then exists (
        select from undo
        where starts_with(step.command, format('alter table %%s drop c', undo.source))
          and case undo.kind when 'check' then to_regclass(undo.source) is not null
                             else exists (select from pg_attribute as a where a.attrelid = to_regclass(undo.source)
                                            and a.attname = undo.name and not a.attisdropped) end)
    else true end
order by step.step
