-- privileges: the roles that can do what only the owner, or its functions, should; superusers and the owner aside.
-- It counts privileges however they were granted: to PUBLIC, to a role by name, through membership, on the whole schema, on a
-- segment, or by default privileges. `grave`: a fault; the others are worth knowing.
with recursive place as (
    select c.relnamespace as oid, n.nspname, n.nspowner, n.nspacl
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace where c.oid = '/*schema*/outbox'::regclass
),
anybody as (
    select r.oid, quote_ident(r.rolname) as name from pg_roles as r where not r.rolsuper and r.rolname !~ '^pg_'
),
-- A role that may execute withdraw is an operator. It needs no privilege on any table (docs/roles.md); older operators did.
role as (
    select anybody.*, exists (select from pg_proc as p where p.pronamespace = place.oid and p.proname = 'withdraw'
                                and has_function_privilege(anybody.oid, p.oid, 'execute')) as operator
    from anybody, place where not pg_has_role(anybody.oid, place.nspowner, 'member')
),
-- A segment counts as the log.
part as (
    select c.oid, c.relkind, c.relowner, coalesce(log.relname, c.relname)::text as relation
    from place join pg_class as c on c.relnamespace = place.oid and c.relkind in ('r', 'p', 'v', 'S')
    left join pg_inherits as i on i.inhrelid = c.oid
    left join pg_class as log on log.oid = i.inhparent
),
-- `meant`: what an operator needed before. It is worth knowing, because it allows changes without the audit.
risk (relation, privileges, meant, why) as (
    values ('event_handled', '{update,delete}', '{}', 'a receipt that is gone or changed lets an event be handled twice'),
           ('outbox', '{update,delete}', '{}', 'the log is written once; an event that is gone is lost'),
           ('cursor', '{insert,delete}', '{}', 'a subscription without its cursor loses its place'),
           ('subscription', '{insert,update,delete}', '{update,delete}', 'it decides who gets which events; what is owed goes with it'),
           ('migration', '{insert,update,delete}', '{}', 'it decides which code may run'),
           ('rollup', '{insert,update,delete}', '{}', 'its SQL runs with the rights of the owner'),
           ('rollup_pending', '{insert,update,delete}', '{}', 'its rows become events'),
           ('rollup_log', '{insert,update,delete}', '{}', 'it tells what rollups did'),
           ('schedule', '{delete}', '{}', 'a schedule that is gone fires nothing, and begins anew'),
           ('setting', '{insert,update,delete}', '{update}', 'it holds the limits'),
           ('withdrawal', '{insert,update,delete}', '{insert}', 'what is withdrawn nobody handles'),
           ('audit', '{insert,update,delete}', '{insert}', 'an audit that can be written at will is none'),
           ('segment', '{insert,update,delete}', '{}', 'what it says is gone is dropped'),
           ('upkeep', '{insert,update,delete}', '{}', 'it says when upkeep is due')
),
-- Views over our tables, and over those views.
through (view, base) as (
    select r.ev_class, part.oid
    from part join pg_depend as d on d.refclassid = 'pg_class'::regclass and d.refobjid = part.oid
    join pg_rewrite as r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid and r.ev_class <> part.oid
    where part.relkind in ('r', 'p')
    union
    select r.ev_class, through.base
    from through join pg_depend as d on d.refclassid = 'pg_class'::regclass and d.refobjid = through.view
    join pg_rewrite as r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid and r.ev_class <> through.view
),
-- What PUBLIC may do is reported once, and not again for each role.
everybody (may, thing) as (
    select lower(a.privilege_type), part.relation
    from part join pg_class as c on c.oid = part.oid, lateral aclexplode(c.relacl) as a where a.grantee = 0
),
grantable (grantee, privilege, thing) as (
    select a.grantee, a.privilege_type, part.relation
    from part join pg_class as c on c.oid = part.oid, lateral aclexplode(c.relacl) as a where a.is_grantable
    union
    select a.grantee, a.privilege_type, part.relation
    from part join pg_attribute as t on t.attrelid = part.oid, lateral aclexplode(t.attacl) as a where a.is_grantable
    union
    select a.grantee, a.privilege_type, p.oid::regprocedure::text
    from place join pg_proc as p on p.pronamespace = place.oid, lateral aclexplode(p.proacl) as a where a.is_grantable
    union
    select a.grantee, a.privilege_type, 'the schema' from place, lateral aclexplode(place.nspacl) as a where a.is_grantable
),
held (who, may, thing, why) as (
    select role.name, privilege, part.relation, risk.why
    from role, risk join part using (relation), unnest(risk.privileges::text[]) as privilege
    where part.relkind in ('r', 'p') and (role.operator and privilege = any (risk.meant::text[])) is not true
      and case when privilege = 'delete' then has_table_privilege(role.oid, part.oid, privilege)
               else has_any_column_privilege(role.oid, part.oid, privilege) end
    union
    select role.name, privilege, part.relation, case privilege when 'truncate' then 'it empties a table past every check'
           else 'a trigger runs with the rights of whoever writes' end
    from role, part, unnest('{truncate,trigger}'::text[]) as privilege
    where part.relkind in ('r', 'p') and has_table_privilege(role.oid, part.oid, privilege)
    union
    select role.name, format('insert (%s)', a.attname), part.relation, 'whoever chooses it can make readers skip events'
    from role, part join pg_attribute as a on a.attrelid = part.oid and a.attname in ('seq', 'tx')
    where part.relation = 'outbox' and has_column_privilege(role.oid, part.oid, a.attnum, 'insert')
    union
    select role.name, 'update', part.relation, 'numbers that are set back are given twice'
    from role, part where case when part.relkind = 'S' then has_sequence_privilege(role.oid, part.oid, 'update') end
    union
    select role.name, 'usage', part.relation, 'whoever draws numbers for nothing uses them up'
    from role, part
    where case when part.relkind = 'S' then part.relation not in ('lease_token', 'job_id_seq')
                                            and has_sequence_privilege(role.oid, part.oid, 'usage') end
    union
    -- From the list of grants: before Postgres 17, has_table_privilege does not know MAINTAIN.
    select role.name, 'maintain', part.relation, 'it can lock everybody out of a table, for as long as it likes'
    from role, part join pg_class as c on c.oid = part.oid, lateral aclexplode(c.relacl) as a
    where part.relkind in ('r', 'p') and a.privilege_type = 'MAINTAIN' and a.grantee <> 0 and pg_has_role(role.oid, a.grantee, 'member')
),
found (who, may, why) as (
select held.who, string_agg(distinct held.may, ', ' order by held.may) || ' on '
           || array_to_string((array_agg(distinct held.thing order by held.thing))[:4], ', ')
           || case when count(distinct held.thing) > 4 then format(' and %s more', count(distinct held.thing) - 4) else '' end as may,
       held.why
from held where not exists (select from everybody as e where (e.may, e.thing) = (held.may, held.thing))
group by held.who, held.why
union all
select anybody.name, 'do everything', 'it is a member of the owner, ' || place.nspowner::regrole
from anybody, place where anybody.oid <> place.nspowner and pg_has_role(anybody.oid, place.nspowner, 'member')
union all
select role.name, format('create in the schema %I', place.nspname), 'what it makes there others may call'
from role, place where has_schema_privilege(role.oid, place.oid, 'create')
union all
select role.name, 'change ' || min(part.relation), 'it owns what the owner of the schema should'
from role join part on part.relowner = role.oid group by role.name
union all
select role.name, 'replace ' || p.oid::regprocedure, 'it owns what the owner of the schema should'
from role, place join pg_proc as p on p.pronamespace = place.oid where p.proowner = role.oid
union all
select 'PUBLIC', string_agg(distinct lower(a.privilege_type), ', ' order by lower(a.privilege_type)) || ' on ' || part.relation,
       'granted to everybody who can connect'
from part join pg_class as c on c.oid = part.oid, lateral aclexplode(c.relacl) as a
where a.grantee = 0
  -- The counters of each cursor, which every role that takes must read.
  and not (a.privilege_type = 'SELECT' and part.relation ~ '^(takes|excused)_\d+$')
group by part.relation
union all
select 'PUBLIC', format('%s on %s.%s', lower(a.privilege_type), part.relation, t.attname), 'granted to everybody who can connect'
from part join pg_attribute as t on t.attrelid = part.oid, lateral aclexplode(t.attacl) as a where a.grantee = 0
union all
select 'PUBLIC', format('%s on the schema %I', lower(a.privilege_type), place.nspname), 'granted to everybody who can connect'
from place, lateral aclexplode(place.nspacl) as a where a.grantee = 0
union all
select 'PUBLIC', 'execute ' || p.oid::regprocedure, case when p.prosecdef then 'it runs with the rights of its owner'
                                                         else 'granted to everybody who can connect' end
from place join pg_proc as p on p.pronamespace = place.oid
where p.proacl is null or exists (select from aclexplode(p.proacl) as a where a.grantee = 0)
union all
select 'whoever may execute ' || p.oid::regprocedure, 'act as ' || p.proowner::regrole,
       'it runs with the rights of its owner, and its caller chooses the search_path'
from place join pg_proc as p on p.pronamespace = place.oid
where p.prosecdef and not exists (select from unnest(p.proconfig) as c (setting) where c.setting like 'search\_path=%')
union all
select 'whoever may execute ' || p.oid::regprocedure, 'act as ' || p.proowner::regrole,
       'it runs with the rights of its owner, and its search_path should be pg_catalog, pg_temp and no more'
from place join pg_proc as p on p.pronamespace = place.oid, unnest(p.proconfig) as c (setting)
where p.prosecdef and c.setting like 'search\_path=%'
  and (c.setting !~ ', "?pg_temp"?$'
       or exists (select from unnest(string_to_array(regexp_replace(c.setting, '^search_path=|, "?pg_temp"?$', '', 'g'), ', ')) as part (name)
                  where part.name not in ('pg_catalog', quote_ident(place.nspname))))
union all
select role.name, format('%s %s through the view %s', string_agg(distinct privilege, ', ' order by privilege), part.relation,
                         v.oid::regclass), 'the view writes with the rights of its owner'
from role, through join part on part.oid = through.base
join pg_class as v on v.oid = through.view and v.relkind = 'v', unnest('{insert,update,delete}'::text[]) as privilege
where not exists (select from unnest(v.reloptions) as o (option) where o.option ~ '^security_invoker=(true|on|yes|1)$')
  and pg_relation_is_updatable(v.oid, true) & (case privilege when 'insert' then 8 when 'update' then 4 else 16 end) <> 0
  and has_schema_privilege(role.oid, v.relnamespace, 'usage')
  and case when privilege = 'delete'
           then has_table_privilege(role.oid, v.oid, privilege) and has_table_privilege(v.relowner, part.oid, privilege)
           else has_any_column_privilege(role.oid, v.oid, privilege) and has_any_column_privilege(v.relowner, part.oid, privilege) end
group by role.name, part.relation, v.oid
union all
select role.name, format('grant %s on %s', string_agg(distinct lower(g.privilege), ', ' order by lower(g.privilege)), g.thing),
       'it was granted with the option to grant it to others'
from role join grantable as g on g.grantee = role.oid group by role.name, g.thing
union all
select role.name, 'lock every table', 'it is a member of pg_maintain'
from role join pg_roles as m on m.rolname = 'pg_maintain' and pg_has_role(role.oid, m.oid, 'member')
union all
select case a.grantee when 0 then 'PUBLIC' else a.grantee::regrole::text end,
       format('%s every %s that %s will make%s', string_agg(distinct lower(a.privilege_type), ', ' order by lower(a.privilege_type)),
              case d.defaclobjtype when 'r' then 'table' when 'f' then 'function' when 'S' then 'sequence' when 'T' then 'type'
                                   when 'n' then 'schema' else 'object' end,
              d.defaclrole::regrole, case d.defaclnamespace when 0 then ', anywhere' else '' end),
       'default privileges: the next migration makes what it may use'
from place, pg_default_acl as d, lateral aclexplode(d.defaclacl) as a
where (d.defaclnamespace = place.oid or d.defaclnamespace = 0 and d.defaclrole = place.nspowner)
  and a.grantee not in (d.defaclrole, place.nspowner) and (a.grantee = 0 or a.privilege_type not in ('SELECT', 'REFERENCES'))
group by 1, d.defaclobjtype, d.defaclrole, d.defaclnamespace
union all
-- Other schemas: another Outrider in the same database belongs to another context.
select anybody.name, format('publish in %s and in %I', place.nspname, there.nspname),
       'events of one context could pass for those of another'
from anybody, place, pg_namespace as there join pg_class as log on log.relnamespace = there.oid and log.relname = 'outbox'
where there.oid <> place.oid and exists (select from pg_class as m where m.relnamespace = there.oid and m.relname = 'event_handled')
  and not (pg_has_role(anybody.oid, place.nspowner, 'member') and pg_has_role(anybody.oid, there.nspowner, 'member'))
  and has_any_column_privilege(anybody.oid, '/*schema*/outbox'::regclass, 'insert')
  and has_any_column_privilege(anybody.oid, log.oid, 'insert')
)
select found.who, found.may, found.why, true as grave from found
union all
select role.name, string_agg(distinct privilege, ', ' order by privilege) || ' on ' || part.relation,
       'an operator acts through functions, which keep an audit', false
from role, risk join part using (relation), unnest(risk.meant::text[]) as privilege
where role.operator and part.relkind in ('r', 'p')
  and case when privilege = 'delete' then has_table_privilege(role.oid, part.oid, privilege)
           else has_any_column_privilege(role.oid, part.oid, privilege) end
group by role.name, part.relation
union all
-- From Postgres 16 on this takes the admin option, which counts as membership above.
select quote_ident(r.rolname), 'create roles', format('it may make itself a member of the owner, %s', place.nspowner::regrole), false
from place, pg_roles as r join pg_roles as o on true
where o.oid = place.nspowner and not o.rolsuper and r.rolcreaterole and not r.rolsuper
  and not pg_has_role(r.oid, place.nspowner, 'member') and current_setting('server_version_num')::integer < 160000
order by 4 desc, 1, 2
