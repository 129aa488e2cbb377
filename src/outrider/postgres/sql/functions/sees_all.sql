-- sees_all: an error for whoever is held back by a policy of ours: what it does not see it would take for not there, and a
-- cursor would go past it. Those who see every tenant are named by the policies every_tenant (tenants_plan).
create or replace function /*schema*/sees_all() returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    held text;
begin
    if not (row_security_active('/*schema*/outbox'::regclass) or row_security_active('/*schema*/delivery'::regclass)) then
        return;
    end if;
    select t.name into held from unnest(array['outbox', 'delivery']) as t (name)
    where row_security_active(('/*schema*/' || t.name)::regclass) and not exists (
        select from pg_policy as p cross join unnest(p.polroles) as r (role)
        where p.polrelid = ('/*schema*/' || t.name)::regclass and p.polname = 'every_tenant'
          and case r.role when 0 then true else pg_has_role(current_user, r.role, 'usage') end
          and not exists (select from pg_policy as n where n.polrelid = p.polrelid and not n.polpermissive));
    if found then
        raise 'row-level security hides rows of % from role "%", and this needs all of them', held, current_user
            using errcode = 'insufficient_privilege',
                  hint = format('The owner of the schema lets it see all: outrider tenants enable --role %s',
                                quote_ident(current_user));
    end if;
end
$$;
