-- rollup_commands: the commands that install a rollup, beside its rows in our tables, in this order: columns and CHECK constraints of
-- the user, functions, trigger, schedule. Objects that exist in the same form are left out. Reads only.
create or replace function /*schema*/rollup_commands(p_spec jsonb) returns table (command text)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    rollup constant /*schema*/rollup := (select r from /*schema*/rollup as r where r.name = p_spec ->> 'name');
    part   constant record := /*schema*/rollup_parts(p_spec);
    name   constant text := p_spec ->> 'name';
    pinned constant text := 'language plpgsql security definer set search_path = pg_catalog, pg_temp';
    -- The same text for every session that inserts, or one group would become two.
    same   constant text := ' set timezone = ''UTC'' set datestyle = ''ISO'' set intervalstyle = ''postgres'' '
                            'set extra_float_digits = 1 set bytea_output = ''hex''';
    -- The trigger's function. A trial that writes nothing takes no transaction id. The user's own insert succeeds even if an
    -- expression fails.
    stage  constant text := format($function$#variable_conflict use_column
declare
%1$s    outrider_workspace text;
    outrider_key text;
    outrider_carried jsonb;
    outrider_error text;
begin
    begin
%2$s        outrider_workspace := nullif((%3$s)::text, '');
        outrider_key := nullif((%4$s)::text, '');
        outrider_carried := %5$s;
    exception when others then
        outrider_carried := 'null';
        outrider_error := left(sqlstate || ': ' || sqlerrm, 8000);
    end;
    insert into /*schema*/rollup_pending (rollup, workspace_id, group_key, carried, set_aside_at, error)
    values (%6$L, outrider_workspace, outrider_key, outrider_carried,
            case when outrider_error is not null then clock_timestamp() end, outrider_error);
    return null;
end$function$,
        case when part.parent is not null then E'    parent record;\n' end,
        case when part.parent is not null then
            format(E'        select parent.* into parent from %s as parent where (%s);\n', part.parent, part.parent_on) end,
        part.workspace, part.group_key, part.carried, name);
    -- The same for events, called by their handler. Locks the rollup's row only against uninstall, which locks it FOR UPDATE.
    stages constant text := format($function$#variable_conflict use_column
begin
    perform from /*schema*/rollup as r where r.name = %1$L and r.uninstalled_at is null for key share;
    if not found then
        raise 'the rollup %% is not installed any more', %1$L using errcode = 'OR007';
    end if;
    insert into /*schema*/rollup_pending (rollup, workspace_id, group_key, carried)
    select %1$L, nullif((%2$s)::text, ''), nullif((%3$s)::text, ''), %4$s
    from /*schema*/outbox as new%5$s where new.seq = any (p_seqs)%6$s order by new.seq;
end$function$,
        name, part.workspace, part.group_key, part.carried,
        case when part.parent is not null then format(' left join %s as parent on (%s)', part.parent, part.parent_on) end,
        coalesce(' and (' || part.condition || ')', ''));
    -- Writes the user's notifications of emitted events.
    notes  constant text := (
        select format($function$#variable_conflict use_column
declare
    noted bigint;
begin
    insert into %s (%s)
    select %s
    from (
        select o.id as event_id, o.event_type, o.workspace_id, o.aggregate_id as key, o.payload,
               coalesce((o.payload ->> 'piece_count')::integer, 1) as piece_count, o.idempotency_key,
               o.occurred_at
        from /*schema*/outbox as o where o.seq = any (p_seqs) order by o.seq) as e
    on conflict do nothing;
    get diagnostics noted = row_count;
    return noted;
end$function$,
            p_spec #>> '{notify,table}', string_agg(format('%I', c.key), ', '), string_agg(format('(%s)', c.value), ', '))
        from jsonb_each_text(p_spec #> '{notify,columns}') as c);
    home    constant oid := (select c.relnamespace from pg_class as c where c.oid = '/*schema*/rollup'::regclass);
    -- Only intervals that divide an hour, because cron counts from the full hour.
    minutes constant integer := (select max(d) from unnest(array[1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]) as d
                                 where d <= greatest(1, ceil((p_spec ->> 'every')::numeric / 60)));
begin
    return query
    select format('alter table %s add column %I %s', c ->> 'table', c ->> 'name', c ->> 'type')
    from jsonb_array_elements(p_spec -> 'columns') with ordinality as item (c, place)
    where not exists (select from pg_attribute as a where a.attrelid = to_regclass(c ->> 'table')
                        and a.attname = c ->> 'name' and not a.attisdropped)
    order by place;
    return query
    select format('alter table %s drop constraint %I, add constraint %2$I check (%s)%s%s',
                  c ->> 'table', c ->> 'name', c ->> 'check', case when k.connoinherit then ' no inherit' end,
                  case when not k.convalidated then ' not valid' end)
    from jsonb_array_elements(p_spec -> 'checks') with ordinality as item (c, place)
    left join pg_constraint as k on k.conrelid = to_regclass(c ->> 'table') and k.conname = c ->> 'name' and k.contype = 'c'
    where not exists (
        select from jsonb_array_elements(rollup.undo) as u
        where u ->> 'kind' = 'check' and u ->> 'table' = c ->> 'table' and u ->> 'name' = c ->> 'name'
          and u ->> 'check' = c ->> 'check' and u ->> 'after' = pg_get_constraintdef(k.oid))
    order by place;
    -- Objects that an older declaration created elsewhere or in another form.
    return query
    select format('drop trigger %I on %s', t.tgname, t.tgrelid::regclass)
    from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
    where t.tgname = 'outrider_rollup_' || part.slug and t.tgparentid = 0 and t.tgrelid is distinct from part.source
      and p.proname = 'rollup_stage_' || part.slug and p.pronamespace = home;
    return query
    select format('drop function %s', p.oid::regprocedure) from pg_proc as p
    where p.pronamespace = home
      and (p.proname = 'rollup_stage_' || part.slug and (p.pronargs = 0) = (p_spec ->> 'table' is null)
           or p.proname = 'rollup_note_' || part.slug and not p_spec ? 'notify');
    if p_spec ->> 'table' is not null then
        return query values
            (format('create or replace function /*schema*/%I() returns trigger %s as %L', 'rollup_stage_' || part.slug,
                    pinned || same, stage)),
            (format('revoke all on function /*schema*/%I() from public', 'rollup_stage_' || part.slug)),
            (format('create or replace trigger %I after insert on %s for each row %sexecute function /*schema*/%I()',
                    'outrider_rollup_' || part.slug, coalesce(part.source::text, p_spec ->> 'table'),
                    'when (' || part.condition || ') ', 'rollup_stage_' || part.slug));
    else
        return query values
            (format('create or replace function /*schema*/%I(p_seqs bigint[]) returns void %s as %L',
                    'rollup_stage_' || part.slug, pinned || same, stages)),
            (format('revoke all on function /*schema*/%I(bigint[]) from public', 'rollup_stage_' || part.slug));
        return query
        select format('grant execute on function /*schema*/%I(bigint[]) to %s', 'rollup_stage_' || part.slug,
                      a.grantee::regrole)
        from pg_proc as p cross join aclexplode(p.proacl) as a
        where p.oid = '/*schema*/rollup_tick(text, boolean)'::regprocedure
          and a.privilege_type = 'EXECUTE' and a.grantee not in (0, p.proowner);
    end if;
    if p_spec ? 'notify' then
        return query values
            (format('create or replace function /*schema*/%I(p_seqs bigint[]) returns bigint %s as %L',
                    'rollup_note_' || part.slug, pinned, notes)),
            (format('revoke all on function /*schema*/%I(bigint[]) from public', 'rollup_note_' || part.slug));
        return query
        select format('grant execute on function /*schema*/%I(bigint[]) to %s', 'rollup_note_' || part.slug,
                      p.proowner::regrole)
        from pg_proc as p
        where p.oid = '/*schema*/rollup_tick(text, boolean)'::regprocedure and p.proowner <> current_user::regrole;
    end if;
    if part.scheduler = 'cron' then
        return query values (format('select cron.schedule(%L, %L, %L)', part.job,
            case when minutes = 60 then '0 * * * *' when minutes = 1 then '* * * * *' else format('*/%s * * * *', minutes) end,
            format('select /*schema*/rollup_tick(%L)', name)));
    elsif exists (select from pg_extension where extname = 'pg_cron') then
        return query execute
            'select format(''select cron.unschedule(%s)'', j.jobid) from cron.job as j where j.jobname = $1' using part.job;
    end if;
end
$$;
