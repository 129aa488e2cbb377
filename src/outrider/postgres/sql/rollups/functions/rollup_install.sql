-- rollup_install: install a rollup on its table, or on events: its row, its settings, and what rollup_commands returns.
-- Installing again replaces the declaration and keeps staged rows. Existing rows of the table are not staged. Runs as the caller, who
-- must own the table; refused (OR007) if rollup_preflight finds a fault that blocks.
-- Locks:  the rollup's row, if there is one; then the source table against writers, for a moment. Waits 5 s at most.
create or replace function /*schema*/rollup_install(p_spec jsonb) returns jsonb
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '5s'
as $$
declare
    name     constant text := p_spec ->> 'name';
    part     constant record := /*schema*/rollup_parts(p_spec);
    refused  text;
    before   /*schema*/rollup;
    held     record;
    changed  jsonb;
    command  text;
    commands jsonb := '[]';
begin
    perform from /*schema*/rollup as r where r.name = p_spec ->> 'name' for no key update;  -- a tick uses the tables too
    select string_agg(format('%s: %s', p.topic, p.detail), '; ') into refused
    from /*schema*/rollup_preflight(p_spec) as p where not p.passed and p.blocks;
    if refused is not null then
        raise '% was not installed: %', name, refused using errcode = 'OR007';
    end if;
    -- At once in the strongest mode needed: two sessions that upgrade their locks would deadlock.
    for held in
        select t.relation, case when bool_or(t.altered) then 'access exclusive' else 'share row exclusive' end as mode
        from (select part.source as relation, false as altered where part.source is not null
              union all
              select to_regclass(c ->> 'table'), true
              from jsonb_array_elements(coalesce(p_spec -> 'columns', '[]') || coalesce(p_spec -> 'checks', '[]')) as c
              where exists (select from /*schema*/rollup_commands(p_spec) as k
                            where starts_with(k.command, format('alter table %s ', c ->> 'table')))
              union all
              select t.tgrelid, true from pg_trigger as t
              where t.tgname = 'outrider_rollup_' || part.slug and t.tgparentid = 0 and t.tgrelid is distinct from part.source) as t
        group by t.relation order by t.relation::oid
    loop
        execute format('lock table %s in %s mode', held.relation, held.mode);
    end loop;
    select r.* into before from /*schema*/rollup as r where r.name = p_spec ->> 'name' for no key update;
    -- What uninstall must restore, noted before anything changes; the notes of an earlier install stay.
    select coalesce(jsonb_agg(undo.entry order by undo.kind, undo.place), '[]') into changed from (
        select c || jsonb_build_object('kind', 'column', 'oid', to_regclass(c ->> 'table')::oid::bigint) as entry, 1 as kind, place
        from jsonb_array_elements(p_spec -> 'columns') with ordinality as item (c, place)
        where not exists (select from pg_attribute as a where a.attrelid = to_regclass(c ->> 'table')
                            and a.attname = c ->> 'name' and not a.attisdropped)
        union all
        select c || jsonb_build_object('kind', 'check', 'oid', k.conrelid::bigint, 'definition', pg_get_constraintdef(k.oid),
                                       'before', pg_get_expr(k.conbin, k.conrelid)), 2, place
        from jsonb_array_elements(p_spec -> 'checks') with ordinality as item (c, place)
        join pg_constraint as k on k.conrelid = to_regclass(c ->> 'table') and k.conname = c ->> 'name') as undo
    where not exists (select from jsonb_array_elements(before.undo) as noted
                      where noted ->> 'table' = undo.entry ->> 'table' and noted ->> 'name' = undo.entry ->> 'name'
                        and noted ->> 'kind' = undo.entry ->> 'kind');
    insert into /*schema*/rollup as r (name, slug, context, spec, scheduler, every, others, undo)
    values (name, part.slug, p_spec ->> 'context', '{}', part.scheduler, make_interval(secs => (p_spec ->> 'every')::numeric),
            /*schema*/rollup_others(part.source), changed)
    on conflict on constraint rollup_pkey do update
    set context = excluded.context, scheduler = excluded.scheduler, every = excluded.every, others = excluded.others,
        undo = r.undo || excluded.undo, installed_at = clock_timestamp(), uninstalled_at = null;
    insert into /*schema*/setting as s (name, value, least, greatest)
    values (format('rollup.%s.debounce_seconds', name), (p_spec ->> 'debounce')::bigint, 60, 300),
           (format('rollup.%s.batch_threshold', name), (p_spec ->> 'threshold')::bigint, 2, 50),
           (format('rollup.%s.max_wait_seconds', name), (p_spec ->> 'max_wait')::bigint, 60, 86400)
    on conflict on constraint setting_pkey do update set value = excluded.value, updated_at = now()
    where s.value <> excluded.value;
    for command in select c.command from /*schema*/rollup_commands(p_spec) as c loop
        execute command;
        commands := commands || to_jsonb(command);
    end loop;
    update /*schema*/rollup as r
    set spec = p_spec,
        trigger = (select pg_get_triggerdef(t.oid) from pg_trigger as t
                   where t.tgrelid = part.source and t.tgname = 'outrider_rollup_' || part.slug),
        undo = coalesce((
            select jsonb_agg(u || case when u ->> 'kind' = 'check' and c is not null then jsonb_build_object(
                'check', c ->> 'check', 'after', pg_get_constraintdef(k.oid)) else '{}' end order by place)
            from jsonb_array_elements(r.undo) with ordinality as noted (u, place)
            left join jsonb_array_elements(p_spec -> 'checks') as c
                on c ->> 'table' = u ->> 'table' and c ->> 'name' = u ->> 'name'
            left join pg_constraint as k on k.conrelid = to_regclass(u ->> 'table') and k.conname = u ->> 'name'), '[]')
    where r.name = p_spec ->> 'name';
    return jsonb_build_object('name', name, 'scheduler', part.scheduler, 'commands', commands);
end
$$;
