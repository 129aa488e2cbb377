-- rollup_check_sql: the part of rollup_preflight that plans the declared SQL, with EXPLAIN, and runs none of it.
-- Is it valid, and does the trigger cost one insert and at most one look-up by a unique key?
-- enable_seqscan is off so that a look-up by key shows as one in the plan even for a table of three rows.
create or replace function /*schema*/rollup_check_sql(p_spec jsonb)
    returns table (topic text, passed boolean, value text, detail text, blocks boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    part    constant record := /*schema*/rollup_parts(p_spec);
    -- The sub-selects of a plan.
    nested  constant jsonpath := 'strict $.** ? (@."Parent Relationship" == "SubPlan" || @."Parent Relationship" == "InitPlan")';
    absent  jsonb;   -- declared columns that are missing, by table
    samples text[];  -- a row as new, a row as parent
    plan    jsonb;
    lookups jsonb;
    faults  text[];
    item    record;
    line    record;
begin
    topic := 'expressions'; blocks := true;
    begin
        for item in select c ->> 'type' as type from jsonb_array_elements(p_spec -> 'columns') as c loop
            if to_regtype(item.type) is null then
                raise 'type % does not exist', quote_nullable(item.type);
            end if;
        end loop;
        if p_spec ? 'parent' and part.parent is null then
            raise 'there is no table % to look up the parent in', p_spec #>> '{parent,table}';
        end if;
        select coalesce(jsonb_object_agg(missing.source, missing.columns), '{}') into absent
        from (select to_regclass(c ->> 'table')::oid::text as source, jsonb_object_agg(c ->> 'name', c ->> 'type') as columns
              from jsonb_array_elements(p_spec -> 'columns') as c
              where to_regclass(c ->> 'table') is not null and not exists (
                  select from pg_attribute as a where a.attrelid = to_regclass(c ->> 'table')
                    and a.attname = c ->> 'name' and not a.attisdropped)
              group by 1) as missing;
        samples := array(
            select format('(select *%s from %s limit 1) as %s', (
                       select string_agg(format(', null::%s as %I', c.value, c.key), '')
                       from jsonb_each_text(absent -> t.relation::oid::text) as c), t.relation, t.name)
            from (values ('new', coalesce(part.source, '/*schema*/outbox'::regclass)),
                         ('parent', part.parent)) as t (name, relation)
            where t.relation is not null order by t.name);
        -- A FOR loop accepts only one statement, and EXPLAIN runs none.
        if part.source is not null and part.condition is not null then
            for item in execute format('explain (format json) select (%s) is true from %s', part.condition, samples[1]) loop
                plan := item."QUERY PLAN";
            end loop;
            if exists (select from jsonb_path_query(plan, nested, '{}', true)) then
                raise 'when is the WHEN of a trigger, which takes no subquery';
            end if;
        end if;
        plan := null;
        for item in execute format(
            'explain (format json) select %s nullif((%s)::text, ''''), nullif((%s)::text, ''''), %s, (%s) is true from %s',
            case when part.parent is not null then
                format('(select true from %s as parent where (%s)),', part.parent, part.parent_on) end,
            part.workspace, part.group_key, part.carried,
            coalesce(case when part.source is null then part.condition end, 'true'), array_to_string(samples, ', ')) loop
            plan := item."QUERY PLAN";
        end loop;
        if p_spec ? 'notify' then
            for item in
                select string_agg(format('(%s)', c.value), ', ') as given,
                       format('insert into %s (%s)', p_spec #>> '{notify,table}', string_agg(format('%I', c.key), ', ')) as target,
                       coalesce(absent -> to_regclass(p_spec #>> '{notify,table}')::oid::text ? c.key, false) as missing
                from jsonb_each_text(p_spec #> '{notify,columns}') as c
                group by missing
            loop
                for line in execute format(
                    'explain %s select %s from (select o.id as event_id, o.event_type, o.workspace_id, '
                    'o.aggregate_id as key, o.payload, 1 as piece_count, o.idempotency_key, o.occurred_at '
                    'from /*schema*/outbox as o limit 1) as e %s',
                    case when not item.missing then item.target end, item.given,
                    case when not item.missing then 'on conflict do nothing' end) loop
                    null;
                end loop;
            end loop;
        end if;
        for item in
            select c ->> 'table' as source, c ->> 'check' as condition, t.relname, (
                       select string_agg(format(', null::%s as %I', a.value, a.key), '')
                       from jsonb_each_text(absent -> t.oid::text) as a) as more
            from jsonb_array_elements(p_spec -> 'checks') as c join pg_class as t on t.oid = to_regclass(c ->> 'table')
        loop
            for line in execute format('explain select from (select * %s from %s) as %I where (%s)',
                                       item.more, item.source, item.relname, item.condition) loop
                null;
            end loop;
        end loop;
        passed := true; value := 'VALID'; detail := 'key, condition and columns are valid SQL';
    exception when others then
        passed := false; value := 'INVALID';
        detail := sqlerrm || case when sqlstate <> 'P0001' then
            ': names of your own must be qualified with their schema, columns with new or parent' else '' end;
    end;
    return next;

    if plan is not null then
        topic := 'trigger cost';
        select coalesce(jsonb_agg(distinct node), '[]') into lookups
        from jsonb_path_query(plan, nested, '{}', true) as node
        where jsonb_typeof(node) = 'object';
        faults := array(
            select node ->> 'Node Type' from jsonb_array_elements(lookups) as node
            where node ? 'Plans' or not coalesce((
                -- All columns of the key by equality. Several schemas may have an index of that name.
                select bool_and(i.indisunique and not exists (
                           select from pg_attribute as a
                           where a.attrelid = c.oid and a.attnum <= i.indnkeyatts
                             and node ->> 'Index Cond' !~ format('\(%s\)?(::[^=<>]*)? = (?!ANY)', regexp_replace(
                                     quote_ident(a.attname), '(\W)', '\\\1', 'g'))))
                       and node ? 'Index Cond'
                from pg_class as c join pg_index as i on i.indexrelid = c.oid
                where c.relname = node ->> 'Index Name'), false));
        passed := faults = '{}' and jsonb_array_length(lookups) <= 1;
        value := case when passed then 'O(1)' else 'GROWS' end;
        detail := case when passed then format('one insert, %s look-ups by a unique key', jsonb_array_length(lookups))
                       else format('each row would cost more than one insert and one look-up by a unique key: %s',
                                   coalesce(nullif(array_to_string(faults, ', '), ''),
                                            jsonb_array_length(lookups) || ' look-ups')) end;
        return next;
    end if;
end
$$;
