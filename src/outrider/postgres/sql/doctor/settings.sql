-- settings: timeouts and read-only settings that apply to our sessions, and where each is set (`from`).
-- Those of this session, unless it has set them itself, and those of the roles of workers, in the order in which Postgres looks
-- them up. Roles of workers: those with a session of ours, and those that may write heartbeats, superusers aside.
with wanted (name, harmless) as (
    values ('statement_timeout', '^0+[a-z ]*$'), ('transaction_timeout', '^0+[a-z ]*$'), ('lock_timeout', '^0+[a-z ]*$'),
           ('default_transaction_read_only', '^(off|of|false|f|no|n|0)$')
),
open as (
    select w.name, w.harmless, s.setting, s.unit, s.source from wanted as w join pg_settings as s on s.name = w.name
    where s.source not in ('client', 'session', 'interactive')
),
role as (
    select r.oid, r.rolname from pg_roles as r
    where r.rolcanlogin and (r.rolname = session_user
       or r.oid in (select a.usesysid from pg_stat_activity as a
                    where a.datname = current_database() and a.application_name ~ '^outrider')
       or not r.rolsuper and has_table_privilege(r.oid, '/*schema*/worker', 'insert'))
),
kept as (
    select d.setrole, d.setdatabase, split_part(c.setting, '=', 1) as name, substr(c.setting, strpos(c.setting, '=') + 1) as value
    from pg_db_role_setting as d, unnest(d.setconfig) as c (setting)
    where d.setdatabase in (0, (select b.oid from pg_database as b where b.datname = current_database()))
),
of_roles as (
    select distinct on (role.oid, open.name) open.name, kept.value, open.harmless,
           case when kept.setrole <> 0 then 'the role ' || quote_ident(role.rolname)
                when kept.setdatabase <> 0 then 'the database ' || quote_ident(current_database()) else 'all roles' end as place
    from open join kept on kept.name = open.name join role on kept.setrole in (0, role.oid)
    order by role.oid, open.name, kept.setrole <> 0 desc, kept.setdatabase <> 0 desc
)
select distinct o.name, o.value, o.place from of_roles as o where lower(o.value) !~ o.harmless
union
select open.name, open.setting || coalesce(' ' || open.unit, ''), 'the ' || open.source from open
where open.source not in ('database', 'user', 'database user', 'global') and open.setting !~ open.harmless
union
select 'default_transaction_read_only', 'on', 'the server, which is a standby' where pg_is_in_recovery()
order by 1, 3 limit 20
