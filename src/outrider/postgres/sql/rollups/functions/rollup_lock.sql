-- rollup_lock: lock the tables that installing this rollup changes: against writers, or, if it alters them, against everybody.
-- Each at once in the strongest mode needed: two sessions that upgrade their locks would deadlock.
create or replace function /*schema*/rollup_lock(p_spec jsonb) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    part constant record := /*schema*/rollup_parts(p_spec);
    held record;
begin
    for held in
        select t.relation, case when bool_or(t.altered) then 'access exclusive' else 'share row exclusive' end as mode
        from (select part.source as relation, false as altered where part.source is not null
              union all
              select to_regclass(c ->> 'table'), true
              from jsonb_array_elements(coalesce(p_spec -> 'columns', '[]') || coalesce(p_spec -> 'checks', '[]')) as c
              where exists (select from /*schema*/rollup_commands(p_spec) as k
                            where starts_with(k.command, format('alter table %s ', c ->> 'table')))
              union all
              select t.tgrelid, true from pg_trigger as t  -- of an older declaration, on another table
              where t.tgname = 'outrider_rollup_' || part.slug and t.tgparentid = 0 and t.tgrelid is distinct from part.source) as t
        group by t.relation order by t.relation::oid
    loop
        execute format('lock table %s in %s mode', held.relation, held.mode);
    end loop;
end
$$;
