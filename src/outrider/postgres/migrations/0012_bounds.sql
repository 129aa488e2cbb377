-- Bounds: no producer can stop the others.
-- breaking: no
-- functions: dda60491b515cb7b

-- Whose turn it is to claim jobs of a limited type: see hold_limits.
create table /*schema*/job_limit (
    subscription text primary key references /*schema*/subscription (name) on update cascade on delete cascade
);

-- What stages events for an installed rollup holds its row instead of an advisory lock, which anybody could take.
do $stages$
declare
    stages record;
begin
    for stages in
        select p.oid, regexp_replace(
                   pg_get_functiondef(p.oid),
                   E'    perform pg_advisory_xact_lock_shared\\(.*?\\);\n    if not exists \\(select (from .*? is null)\\) then\n',
                   E'    perform \\1 for key share;\n    if not found then\n') as definition
        from pg_proc as p
        where p.pronamespace = (select c.relnamespace from pg_class as c where c.oid = '/*schema*/rollup'::regclass)
          and p.proname ~ '^rollup_stage_' and p.prosrc ~ 'pg_advisory_xact_lock_shared'
          and pg_has_role(p.proowner, 'usage')  -- the others with the next install
    loop
        execute stages.definition;
    end loop;
end
$stages$;
