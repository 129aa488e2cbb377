-- rollup_plan: the steps of uninstalling a rollup, and what it would leave in place, with the reason. Changes nothing.
-- Staged rows are kept, with what is needed to emit them, unless p_force.
create or replace function /*schema*/rollup_plan(p_name text, p_force boolean default false)
    returns table (step integer, action text, what text, command text, why text)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set row_security = off            -- an error is better than hidden rows
as $$
#variable_conflict use_column
declare
    rollup  constant /*schema*/rollup := (select r from /*schema*/rollup as r where r.name = p_name);
    home    constant oid := (select c.relnamespace from pg_class as c where c.oid = '/*schema*/rollup'::regclass);
    part    record;
    waiting bigint;
    kept    boolean;
    item    record;
    -- How many rows of a table meet a condition, as text; null if none does.
    many    constant text := 'select case count(*) when 0 then null when 1000 then ''1000 or more'' else count(*)::text end '
                             'from (select from %s where %s limit 1000) as rows';
begin
    if rollup.name is null then
        raise 'there is no rollup %', quote_nullable(p_name) using errcode = 'OR007';
    end if;
    part := /*schema*/rollup_parts(rollup.spec);
    select count(*) into waiting from /*schema*/rollup_pending as p where p.rollup = p_name and p.processed_at is null;
    kept := waiting > 0 and not p_force;
    step := 0;
    if exists (select from pg_extension where extname = 'pg_cron') then
        for item in execute 'select j.jobid, j.jobname from cron.job as j where j.jobname = $1' using part.job loop
            step := step + 1; action := 'do'; what := format('unschedule the job %s of pg_cron', item.jobname);
            command := format('select cron.unschedule(%s)', item.jobid); why := null;
            return next;
        end loop;
    end if;
    for item in
        select t.tgrelid::regclass as source, t.tgname from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
        where t.tgname = 'outrider_rollup_' || part.slug and t.tgparentid = 0
          and p.proname = 'rollup_stage_' || part.slug and p.pronamespace = home
    loop
        step := step + 1; action := 'do'; what := format('drop the trigger on %s', item.source);
        command := format('drop trigger %I on %s', item.tgname, item.source); why := null;
        return next;
    end loop;
    for item in
        select p.oid::regprocedure as name, p.proname = 'rollup_note_' || part.slug and kept as needed from pg_proc as p
        where p.pronamespace = home and p.proname in ('rollup_stage_' || part.slug, 'rollup_note_' || part.slug)
        order by p.proname desc
    loop
        step := step + 1; action := case when item.needed then 'keep' else 'do' end;
        what := format('drop the function %s', item.name);
        command := format('drop function %s', item.name);
        why := case when item.needed then 'the rows that wait need it' end;
        return next;
    end loop;
    for item in select u.entry ->> 'kind' as kind, u.entry ->> 'table' as source, u.entry ->> 'name' as name,
                       u.entry ->> 'before' as before, u.entry ->> 'definition' as definition, u.entry ->> 'after' as after,
                       (u.entry ->> 'oid')::oid as relation
                from jsonb_array_elements(rollup.undo) with ordinality as u (entry, place) order by u.place desc
    loop
        step := step + 1; why := null;
        if item.kind = 'check' then
            what := format('give %s its CHECK constraint %s back as it was', item.source, item.name);
            command := format('alter table %s drop constraint %I, add constraint %2$I %s',
                              item.source, item.name, item.definition);
            if to_regclass(item.source) is distinct from item.relation::regclass then
                why := 'the table is gone';
            elsif item.after is distinct from (select pg_get_constraintdef(k.oid) from pg_constraint as k
                                               where k.conrelid = item.relation and k.conname = item.name) then
                why := 'it was changed since';
            elsif exists (select from /*schema*/rollup as r, jsonb_array_elements(r.undo) as u
                          where r.name <> p_name and u ->> 'kind' = 'check' and (u ->> 'oid')::oid = item.relation
                            and u ->> 'name' = item.name and u ->> 'definition' = item.after) then
                why := 'another rollup was installed upon it';
            elsif kept then
                why := 'the rows that wait may need it';
            else
                execute format(many, item.source, format('not (%s)', item.before)) into why;
                why := why || ' rows would violate it';
            end if;
        else
            what := format('drop the column %s.%s', item.source, item.name);
            command := format('alter table %s drop column %I', item.source, item.name);
            if to_regclass(item.source) is distinct from item.relation::regclass
               or not exists (select from pg_attribute as a where a.attrelid = item.relation
                                and a.attname = item.name and not a.attisdropped) then
                why := 'it is gone already';
            elsif exists (select from pg_attribute as a where a.attrelid = item.relation and a.attname = item.name
                            and (a.attnotnull or a.atthasdef)) then
                why := 'it was changed since';
            elsif kept and rollup.spec #> '{notify,columns}' ? item.name
                  and to_regclass(rollup.spec #>> '{notify,table}') = to_regclass(item.source) then
                why := 'the rows that wait need it';
            else
                execute format(many, item.source, format('%I is not null', item.name)) into why;
                why := why || ' rows hold data in it';
            end if;
            if why is null then
                select 'functions name it: ' || string_agg(p.oid::regprocedure::text, ', ' order by 1) into why from pg_proc as p
                where p.prosrc ~ format('(^|\W)%s(\W|$)', regexp_replace(
                          replace(item.name, '"', '""'), '(\W)', '\\\1', 'g'))
                  and not (p.pronamespace = home and (
                          p.proname in ('rollup_stage_' || part.slug, 'rollup_note_' || part.slug)
                          or p.proname !~ '^rollup_(stage|note)_'))
                  and p.pronamespace <> 'pg_catalog'::regnamespace;
            end if;
            if why is null then
                select 'it is needed: ' || string_agg(distinct pg_describe_object(d.classid, d.objid, d.objsubid), ', ') into why
                from pg_depend as d join pg_attribute as a
                    on a.attrelid = d.refobjid and a.attnum = d.refobjsubid and a.attname = item.name
                where d.refclassid = 'pg_class'::regclass and d.refobjid = to_regclass(item.source) and d.deptype = 'n'
                  and not (d.classid = 'pg_trigger'::regclass and exists (
                          select from pg_trigger as t where t.oid = d.objid
                            and t.tgname = 'outrider_rollup_' || part.slug));
            end if;
        end if;
        action := case when why is null then 'do' else 'keep' end;
        return next;
    end loop;
    if rollup.spec ->> 'table' is null then
        step := step + 1; action := 'keep'; what := format('retire the subscription %s', p_name); command := null;
        why := format('take it out of the app, then outrider subscription retire %s', p_name);
        return next;
    end if;
    step := step + 1; action := case when kept then 'keep' else 'do' end;
    what := format('delete its rows: %s wait', waiting);
    command := format(
        'with gone as (delete from /*schema*/rollup_pending where rollup = %1$L), '
        'told as (delete from /*schema*/setting where name in (%2$L, %3$L, %4$L)) '
        'delete from /*schema*/rollup where name = %1$L', p_name, format('rollup.%s.debounce_seconds', p_name),
        format('rollup.%s.batch_threshold', p_name), format('rollup.%s.max_wait_seconds', p_name));
    why := case when kept then format('outrider rollup run %s --flush emits what waits; --force deletes it', p_name) end;
    return next;
end
$$;
