-- tenants_plan: the commands that enable, or remove, row-level policies that separate tenants in the log, in delivery and in job.
-- It changes nothing itself. The owner of the tables runs the commands in one transaction; running them again renews the policies.
-- own_workspace: every role has the rows of app.workspace_id; none if that is unset or empty. It may publish and enqueue, but write
-- neither a delivery nor a job of an event, which may be another tenant's.
-- every_tenant: the owner, on whom the policies are forced, and p_roles see and write all rows.
-- Segments are read through the log, whose policies then hold; directly, only the owner sees rows.
create or replace function /*schema*/tenants_plan(p_enable boolean, p_roles text[] default '{}')
    returns table (command text)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    own   constant text := 'workspace_id = nullif(current_setting(''app.workspace_id'', true), '''')';
    part  record;
    heads text;
begin
    for part in
        select c.oid::regclass as name, c.relowner::regrole as owner,
               case c.relname when 'outbox' then own when 'job' then own || ' and seq is null' else 'false' end as may_write
        from pg_class as c where c.oid in ('/*schema*/outbox'::regclass, '/*schema*/delivery'::regclass, '/*schema*/job'::regclass) order by c.oid
    loop
        command := format('drop policy if exists own_workspace on %s', part.name); return next;
        command := format('drop policy if exists every_tenant on %s', part.name); return next;
        if p_enable then
            heads := concat_ws(', ', part.owner, (
                select string_agg(r.name::regrole::text, ', ' order by r.place)
                from unnest(p_roles) with ordinality as r (name, place) where r.name::regrole <> part.owner));
            command := format('create policy own_workspace on %s using (%s) with check (%s)', part.name, own, part.may_write);
            return next;
            command := format('create policy every_tenant on %s to %s using (true) with check (true)', part.name, heads);
            return next;
            command := format('alter table %s enable row level security, force row level security', part.name);
        else
            command := format('alter table %s disable row level security, no force row level security', part.name);
        end if;
        return next;
    end loop;
    for part in
        select c.oid::regclass as name from /*schema*/segment as s
        join pg_class as c on c.oid = to_regclass(format('/*schema*/%I', s.name)) where c.relrowsecurity <> p_enable
        order by c.oid
    loop
        command := format('alter table %s %s row level security', part.name, case when p_enable then 'enable' else 'disable' end);
        return next;
    end loop;
    command := case when p_enable then 'alter view /*schema*/event_status set (security_invoker = true)'
                                  else 'alter view /*schema*/event_status reset (security_invoker)' end;
    return next;
end
$$;
