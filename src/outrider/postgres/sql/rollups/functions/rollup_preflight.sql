-- rollup_preflight: check whether a rollup can be installed, one row per topic. Changes nothing.
-- blocks: rollup_install refuses until this check passes.
create or replace function /*schema*/rollup_preflight(p_spec jsonb)
    returns table (topic text, passed boolean, value text, detail text, blocks boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    aggregates constant text := '\m(count|sum|avg|min|max|\w+_agg)\s*\(|\mgroup\s+by\M|\mjoin\M';
    part       constant record := /*schema*/rollup_parts(p_spec);
    rollup     constant /*schema*/rollup := (select r from /*schema*/rollup as r where r.name = p_spec ->> 'name');
    here       constant boolean := rollup.name is not null and rollup.uninstalled_at is null;
    notified   constant regclass := to_regclass(p_spec #>> '{notify,table}');
    our_schema constant oid := (select c.relnamespace from pg_class as c where c.oid = '/*schema*/rollup'::regclass);
    -- Checks replace constraints, columns are added where they are missing.
    changes    constant jsonb := coalesce(p_spec -> 'checks', '[]') || coalesce(p_spec -> 'columns', '[]');
    item     record;
    faults   text[];
    counts   record;
    settings record;
    loaded   boolean;
    served   text;
    doubled  boolean;
    theirs   boolean;
begin
    -- Where do rows come from?
    topic := 'source'; blocks := true;
    if coalesce(p_spec ->> 'name' !~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$', true)
       or octet_length(p_spec ->> 'name') > 47 then
        passed := false; value := 'NO_NAME';
        detail := format('a rollup cannot be called %s: only lower-case words joined by dots, of at most 47 bytes',
                         quote_nullable(p_spec ->> 'name'));
        return next;
        return;
    elsif p_spec ->> 'table' is null then
        passed := true; value := 'EVENTS';
        detail := 'staged by a worker as it handles ' || array_to_string(array(
            select jsonb_array_elements_text(p_spec -> 'events')), ', ');
    elsif part.source is null then
        passed := false; value := 'MISSING';
        detail := format('there is no table %s: create it first, and name its schema', p_spec ->> 'table');
        return next;
        return;
    elsif (select c.relkind not in ('r', 'p') from pg_class as c where c.oid = part.source) then
        passed := false; value := 'NO_TABLE'; detail := format('%s is no table: a trigger for each row needs one', part.source);
        return next;
        return;
    elsif (select c.relnamespace from pg_class as c where c.oid = part.source) = our_schema then
        passed := false; value := 'OURS'; detail := format('%s is Outrider''s own: it would feed itself', part.source);
        return next;
        return;
    else
        passed := has_table_privilege(part.source, 'trigger');
        value := case when passed then 'TABLE' else 'FORBIDDEN' end;
        detail := case when passed then part.source::text else format(
            'user %s may not make a trigger on %s: run this as its owner, or grant trigger on it', current_user, part.source) end;
        if passed and (select c.relkind = 'p' from pg_class as c where c.oid = part.source) then
            value := 'PARTITIONED';
            detail := format('%s; a row that an UPDATE moves to another partition counts as a new one', part.source);
        end if;
    end if;
    return next;

    -- Its functions run as the installer, on tables whose owner decides what their triggers and types do.
    topic := 'rights'; blocks := true;
    faults := array(
        select format('user %s may not %s, which its functions do in their name', current_user, needed.what)
        from (values ('insert into rollup_pending', has_table_privilege('/*schema*/rollup_pending', 'insert')),
                     ('read the log', has_table_privilege('/*schema*/outbox', 'select')
                                      or p_spec ->> 'table' is not null and not p_spec ? 'notify'),
                     ('call rollup_tick, as pg_cron shall', part.scheduler <> 'cron' or has_function_privilege(
                          '/*schema*/rollup_tick(text, boolean)', 'execute'))) as needed (what, holds)
        where not needed.holds);
    if faults = '{}' then
        select array_agg(format('%s belongs to %s', c.oid::regclass, c.relowner::regrole)), bool_or(me.rolsuper and not r.rolsuper)
        into faults, loaded
        from pg_class as c join pg_roles as r on r.oid = c.relowner cross join pg_roles as me
        where c.oid in (part.source, part.parent, notified) and me.rolname = current_user
          and c.relowner <> me.oid;
        passed := faults is null; blocks := coalesce(loaded, false);
        value := case when passed then 'OWNER' else 'ANOTHERS' end;
        detail := case when passed then 'by the owner of the tables' else format(
            '%s, and what is made would run as %s on every insert: triggers and types of that owner would have these rights; '
            'install as the owner', array_to_string(faults, ', '), current_user) end;
    else
        passed := false; value := 'MISSING'; detail := array_to_string(faults, '; ');
    end if;
    return next;

    -- Who will tick?
    topic := 'pg_cron'; blocks := true;
    -- Not every role may read these settings; but a setting that does not exist is null for every role.
    begin
        loaded := current_setting('shared_preload_libraries') ~ '\mpg_cron\M';
        served := coalesce(current_setting('cron.database_name', true), 'postgres');
    exception when insufficient_privilege then
        begin
            loaded := current_setting('cron.database_name', true) is not null;
        exception when insufficient_privilege then
            loaded := true;
        end;
    end;
    value := case
        when exists (select from pg_extension where extname = 'pg_cron') then 'INSTALLED'
        when not exists (select from pg_available_extensions where name = 'pg_cron') then 'NOT_AVAILABLE'
        when not loaded then 'NEEDS_PRELOAD'
        else 'AVAILABLE' end;
    passed := value = 'INSTALLED' or p_spec ->> 'scheduler' <> 'pg_cron';
    detail := case value
        when 'INSTALLED' then case when part.scheduler = 'cron' then 'pg_cron ticks, workers do not'
                                   else 'the worker ticks, as declared; pg_cron does not' end
        when 'NOT_AVAILABLE' then 'the server has no pg_cron: workers tick'
        when 'NEEDS_PRELOAD' then 'add pg_cron to shared_preload_libraries and restart the server, then create extension '
                                  'pg_cron; until then workers tick'
        else case when coalesce(served, current_database()) = current_database()
                  then 'create extension pg_cron to have it tick; until then workers tick'
                  else format('pg_cron serves the database %s (cron.database_name): it can tick here only if that is %s; '
                              'until then workers tick', served, current_database()) end end;
    return next;

    -- Do rows of an earlier installation wait?
    topic := 'staging'; blocks := false;
    select count(*) filter (where p.set_aside_at is null) as waiting, count(p.set_aside_at) as aside into counts
    from /*schema*/rollup_pending as p where p.rollup = p_spec ->> 'name' and p.processed_at is null;
    value := case when here then 'PRESENT' else 'ABSENT' end;
    passed := counts.aside = 0;
    detail := format('%s rows wait, %s are set aside', counts.waiting, counts.aside)
        || case when passed then '' else ': see why in rollup_pending.error, then outrider rollup run --retry' end;
    return next;

    -- Is the name of the trigger free, or its trigger ours?
    topic := 'trigger'; blocks := true;
    select t.tgenabled, p.proname into item
    from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
    where t.tgrelid = part.source and t.tgname = 'outrider_rollup_' || part.slug;
    value := case when not found then 'ABSENT' when item.proname <> 'rollup_stage_' || part.slug or not here then 'FOREIGN'
                  when item.tgenabled = 'D' then 'DISABLED' else 'PRESENT' end;
    doubled := exists (select from /*schema*/rollup as r where r.slug = part.slug and r.name <> p_spec ->> 'name');
    theirs := here and rollup.context <> p_spec ->> 'context';
    passed := value <> 'FOREIGN' and not doubled and not theirs;
    detail := case
        when theirs then format('the context %s has installed a rollup of this name: choose another name, or uninstall that one '
                                'first: outrider rollup uninstall %s', rollup.context, rollup.name)
        when doubled then format('another rollup has the same short name, %s: choose another name', part.slug)
        when value = 'FOREIGN' then format('%s has a trigger outrider_rollup_%s that no installed rollup knows: drop it, or '
                                           'choose another name', part.source, part.slug)
        when p_spec ->> 'table' is null then 'none is needed for events'
        when value = 'PRESENT' then format('outrider_rollup_%s on %s', part.slug, part.source)
        when value = 'DISABLED' then format('alter table %s enable trigger outrider_rollup_%s', part.source, part.slug)
        else format('outrider_rollup_%s will be made on %s', part.slug, part.source) end;
    return next;

    -- Other triggers of the table, which stay as they are: are they costly, or changed since the rollup was installed?
    topic := 'other triggers'; blocks := false;
    select array_agg(format('%s (%s)', t.tgname, p.oid::regproc) order by t.tgname) filter (
               where t.tgtype & 1 = 1 and p.prosrc ~* aggregates) as costly,
           count(*) as many into item
    from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
    where t.tgrelid = part.source and not t.tgisinternal and not starts_with(t.tgname, 'outrider_rollup_');
    faults := array(
        select coalesce(was.key, has.key) from jsonb_each(case when here then rollup.others end) as was
        full join jsonb_each(case when here then /*schema*/rollup_others(part.source) end) as has on has.key = was.key
        where was.value is distinct from has.value order by 1);
    passed := item.costly is null and faults = '{}';
    value := case when faults <> '{}' then 'CHANGED' when item.costly is not null then 'COSTLY'
                  when item.many = 0 then 'NONE' else 'UNTOUCHED' end;
    detail := case value
        when 'CHANGED' then format('not as they were when the rollup was installed: %s; outrider rollup install takes note '
                                   'of them', array_to_string(faults, ', '))
        when 'COSTLY' then format('for each row these seem to count, join or aggregate: %s', array_to_string(item.costly, ', '))
        else format('%s others, left alone', item.many) end;
    return next;

    -- The settings in force, or complaints about them.
    topic := 'settings'; blocks := false;
    settings := /*schema*/rollup_settings(p_spec ->> 'name');
    passed := settings.complaints = '{}';
    value := case when passed then 'OK' else 'ADJUSTED' end;
    detail := case
        when not passed then array_to_string(settings.complaints, '; ')
        when here then format('debounce %s, threshold %s, longest wait %s', settings.debounce, settings.threshold, settings.max_wait)
        else format('debounce %s, threshold %s, longest wait %s', coalesce((p_spec ->> 'debounce') || ' s', settings.debounce::text),
                    coalesce(p_spec ->> 'threshold', settings.threshold::text),
                    coalesce((p_spec ->> 'max_wait') || ' s', settings.max_wait::text)) end;
    return next;

    -- Can constraints be replaced and columns be added as declared?
    topic := 'constraints'; blocks := true;
    begin
        faults := array(
            select format('%s has no CHECK constraint %s (it has: %s)', c ->> 'table', c ->> 'name', coalesce((
                       select string_agg(k.conname, ', ' order by k.conname) from pg_constraint as k
                       where k.conrelid = to_regclass(c ->> 'table') and k.contype = 'c'), 'none'))
            from jsonb_array_elements(p_spec -> 'checks') as c
            where not exists (select from pg_constraint as k where k.conrelid = to_regclass(c ->> 'table')
                                and k.conname = c ->> 'name' and k.contype = 'c')
            union all
            select format('user %s does not own %s, whose constraint or column shall change', current_user, c ->> 'table')
            from jsonb_array_elements(changes) as c
            join pg_class as t on t.oid = to_regclass(c ->> 'table')
            where not pg_has_role(t.relowner, 'usage')
            union all
            select format('%s.%s is %s, not %s', c ->> 'table', c ->> 'name', format_type(a.atttypid, a.atttypmod), c ->> 'type')
            from jsonb_array_elements(p_spec -> 'columns') as c
            join pg_attribute as a on a.attrelid = to_regclass(c ->> 'table') and a.attname = c ->> 'name' and not a.attisdropped
            where a.atttypid is distinct from to_regtype(c ->> 'type')
            union all
            select format('there is no table %s', c ->> 'table')
            from jsonb_array_elements(changes) as c
            where to_regclass(c ->> 'table') is null);
    exception when others then
        faults := array[sqlerrm];
    end;
    passed := faults = '{}';
    value := case when not passed then 'UNEXPECTED' when here then 'IN_PLACE' else 'AS_EXPECTED' end;
    detail := case when passed then format(case when here then '%s CHECK constraints are declared, %s columns are missing'
                                                else 'CHECK constraints to replace: %s, columns to add: %s' end,
        coalesce(jsonb_array_length(p_spec -> 'checks'), 0), (
            select count(*) from jsonb_array_elements(p_spec -> 'columns') as c
            where not exists (select from pg_attribute as a where a.attrelid = to_regclass(c ->> 'table')
                                and a.attname = c ->> 'name' and not a.attisdropped)))
        else array_to_string(faults, '; ') end;
    return next;

    return query select c.* from /*schema*/rollup_check_sql(p_spec) as c;
    return query select c.* from /*schema*/rollup_check_key(p_spec) as c;

    if p_spec ? 'notify' then
        -- Can the user's notification table take a row per event, and does it skip a second one?
        topic := 'notification'; blocks := false;
        select array_agg(a.attname) into faults from pg_attribute as a
        where a.attrelid = notified and a.attnum > 0 and not a.attisdropped and a.attnotnull
          and not a.atthasdef and a.attidentity = '' and a.attgenerated = '' and not p_spec #> '{notify,columns}' ? a.attname;
        select string_agg(i.indexrelid::regclass::text, ', ') as keys into item from pg_index as i
        where i.indrelid = notified and i.indisunique and not i.indimmediate;
        if faults is not null or item.keys is not null or notified = part.source
           or (select c.relnamespace from pg_class as c where c.oid = notified) = our_schema then
            passed := false; blocks := true; value := 'UNFIT';
            detail := case
                when faults is not null then format('these columns of %s must not be null, and get nothing: %s',
                                                    p_spec #>> '{notify,table}', array_to_string(faults, ', '))
                when item.keys is not null then format('%s can be deferred, which ON CONFLICT does not take', item.keys)
                else format('%s would feed the rollup itself', p_spec #>> '{notify,table}') end;
            return next;
            return;
        end if;
        passed := exists (select from pg_index as i where i.indrelid = notified
                            and i.indisunique and (not i.indisprimary or not exists (
                                select from pg_attribute as a where a.attrelid = i.indrelid and a.attnum = any (i.indkey)
                                  and (a.attidentity <> '' or a.atthasdef))));
        value := case when passed then 'UNIQUE' else 'NO_UNIQUE_KEY' end;
        detail := case when passed then format('a second row of the same kind in %s is skipped and counted', p_spec #>> '{notify,table}')
                       else format('%s has no unique key that ON CONFLICT could find', p_spec #>> '{notify,table}') end;
        return next;
    end if;
end
$$;
