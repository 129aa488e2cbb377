-- sees_all: an error for whoever is held back by a policy of ours: what it does not see it would take for not there, and a
-- cursor would go past it. Those who see every tenant are named by the policies every_tenant (tenants_plan).
-- p_caller: in a function that runs as its owner, whoever has called it must see all: the role that was set, else who is logged in.
create or replace function /*schema*/sees_all(p_caller boolean default false) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    asked name := case when p_caller then coalesce(nullif(current_setting('role'), 'none'), session_user) else current_user end;
begin
    if not p_caller
       and not (row_security_active('/*schema*/outbox'::regclass) or row_security_active('/*schema*/delivery'::regclass)) then
        return;
    end if;
    if not /*schema*/sees_every_tenant(asked) then
        raise 'row-level security hides rows of % from role "%", and this needs all of them', '/*schema*/outbox', asked
            using errcode = 'insufficient_privilege',
                  hint = format('The owner of the schema lets it see all: outrider tenants enable --role %s', quote_ident(asked));
    end if;
end
$$;
