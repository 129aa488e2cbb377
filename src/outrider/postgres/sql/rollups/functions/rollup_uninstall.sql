-- rollup_uninstall: perform the steps of rollup_plan, and return them.
-- Locks:  the rollup's row, so ticks are skipped meanwhile; then the tables that it changes, waiting 5 s at most for each. The tables
--         are locked first, so that it sees all rows that their writers have staged.
create or replace function /*schema*/rollup_uninstall(p_name text, p_force boolean default false)
    returns table (step integer, action text, what text, command text, why text)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    held    regclass;
    planned record;
    steps   jsonb;
begin
    perform from /*schema*/rollup as r where r.name = p_name for update;  -- against ticks and against staging events
    for held in
        select t.tgrelid::regclass from pg_trigger as t, /*schema*/rollup as r
        where r.name = p_name and t.tgname = 'outrider_rollup_' || r.slug and t.tgparentid = 0
        union
        select to_regclass(u ->> 'table') from /*schema*/rollup as r, jsonb_array_elements(r.undo) as u
        where r.name = p_name and to_regclass(u ->> 'table') is not null
        order by 1
    loop
        execute format('lock table %s in access exclusive mode', held);
    end loop;
    select jsonb_agg(to_jsonb(p) order by p.step) into steps from /*schema*/rollup_plan(p_name, p_force) as p;
    for planned in select s.* from jsonb_to_recordset(steps) as s (
                       step integer, action text, what text, command text, why text) order by s.step loop
        if planned.action = 'do' then
            execute planned.command;
        end if;
    end loop;
    update /*schema*/rollup as r set uninstalled_at = clock_timestamp() where r.name = p_name;
    return query select s.* from jsonb_to_recordset(steps) as s (
        step integer, action text, what text, command text, why text) order by s.step;
end
$$;
