-- operates: whether the session's user is an operator: it, or a role that it is a member of, may execute withdraw.
-- By session_user, because current_user is the owner in a function that runs as the owner.
create or replace function /*schema*/operates() returns boolean
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pg_roles as r
                   where pg_has_role(session_user, r.oid, 'member')
                     and has_function_privilege(r.oid, '/*schema*/withdraw(uuid, text, text)', 'execute'))
$$;
