-- sees_all: raise an error if one of our row-level policies hides rows from the role: it would take them for missing, and a cursor
-- would pass them. The policies every_tenant (tenants_plan) name the roles that see every tenant.
-- p_caller: in a function that runs as the owner, check the caller instead: the role that was set, else the session's user.
create or replace function /*schema*/sees_all(p_caller boolean default false) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    asked name := case when p_caller then coalesce(nullif(current_setting('role'), 'none'), session_user) else current_user end;
begin
    if not p_caller and not (row_security_active('/*schema*/outbox'::regclass) or row_security_active('/*schema*/delivery'::regclass)
                             or row_security_active('/*schema*/job'::regclass)) then
        return;
    end if;
    if not /*schema*/sees_every_tenant(asked) then
        raise 'row-level security hides rows of % from role "%", and this needs all of them', '/*schema*/outbox', asked
            using errcode = 'insufficient_privilege',
                  hint = format('The owner of the schema can let it see all rows: outrider tenants enable --role %s', quote_ident(asked));
    end if;
end
$$;
