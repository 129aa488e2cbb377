-- sharing: the contexts that have subscriptions here, and the roles that may move the cursors of all; superusers and the owner aside.
-- Contexts that share a schema must trust each other.
select array(select distinct s.context from /*schema*/subscription as s order by 1) as contexts,
       array(select quote_ident(r.rolname)
             from pg_roles as r, pg_namespace as n
             where n.oid = (select c.relnamespace from pg_class as c where c.oid = '/*schema*/outbox'::regclass)
               and not r.rolsuper and r.rolname !~ '^pg_' and not pg_has_role(r.oid, n.nspowner, 'member')
               and has_any_column_privilege(r.oid, '/*schema*/cursor'::regclass, 'update') order by 1) as roles
