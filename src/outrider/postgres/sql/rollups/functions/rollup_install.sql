-- rollup_install: install a rollup on its table, or on events: its row, its settings, and what rollup_commands returns.
-- Installing again replaces the declaration and keeps staged rows. Existing rows of the table are not staged. Runs as the caller, who
-- must own the table; refused (OR007) if rollup_preflight finds a fault that blocks, also if another context has installed it.
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
    noted    jsonb;
    command  text;
    commands jsonb := '[]';
begin
    perform from /*schema*/rollup as r where r.name = p_spec ->> 'name' for no key update;  -- a tick uses the tables too
    select string_agg(format('%s: %s', p.topic, p.detail), '; ') into refused
    from /*schema*/rollup_preflight(p_spec) as p where not p.passed and p.blocks;
    if refused is not null then
        raise '% was not installed: %', name, refused using errcode = 'OR007';
    end if;
    perform /*schema*/rollup_lock(p_spec);
    select r.undo into noted from /*schema*/rollup as r where r.name = p_spec ->> 'name' for no key update;
    insert into /*schema*/rollup as r (name, slug, context, spec, scheduler, every, others, undo)
    values (name, part.slug, p_spec ->> 'context', '{}', part.scheduler, make_interval(secs => (p_spec ->> 'every')::numeric),
            /*schema*/rollup_others(part.source), /*schema*/rollup_undo(p_spec, noted))
    on conflict on constraint rollup_pkey do update
    set context = excluded.context, scheduler = excluded.scheduler, every = excluded.every, others = excluded.others,
        undo = r.undo || excluded.undo, installed_at = clock_timestamp(), uninstalled_at = null
    where r.context = excluded.context or r.uninstalled_at is not null;
    if not found then
        raise '% was not installed: another context installed a rollup of this name meanwhile', name using errcode = 'OR007';
    end if;
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
        undo = /*schema*/rollup_undo_made(p_spec, r.undo)
    where r.name = p_spec ->> 'name';
    return jsonb_build_object('name', name, 'scheduler', part.scheduler, 'commands', commands);
end
$$;
