-- Roles: operators act through functions that are audited, and need no right to any table.
-- breaking: no
-- functions: 09738a4f3eb10206

-- Functions that take a reason since: whoever could call the old ones can call the new ones, which come below.
do $reasons$
declare
    changed record;
    callers text[];
    caller  text;
begin
    for changed in
        select * from (values
            ('outbox_replay(uuid, bigint, text, text, boolean, jsonb)',
             'outbox_replay(p_event_id uuid, p_new_generation bigint, p_replayed_by text, p_subscription text, p_force boolean, '
             'p_payload jsonb, p_reason text) returns table (subscription text, outcome text)'),
            ('replay(bigint[], text, bigint, boolean, jsonb)',
             'replay(p_deliveries bigint[], p_replayed_by text, p_new_generation bigint, p_force boolean, p_payload jsonb, '
             'p_reason text) returns table (delivery bigint, event_id uuid, subscription text, outcome text)'),
            ('run_now(uuid, text)',
             'run_now(p_job_id uuid, p_subscription text, p_by text, p_reason text) '
             'returns table (subscription text, outcome text)'),
            ('move_generation(bigint, bigint, text, text)',
             'move_generation(p_from bigint, p_to bigint, p_by text, p_subscription text, p_reason text) '
             'returns table (subscription text)'),
            ('rollup_retry(text)', 'rollup_retry(p_name text, p_by text, p_reason text) returns bigint')
        ) as f (before, after)
    loop
        callers := array(
            select a.grantee::regrole from pg_proc as p cross join aclexplode(p.proacl) as a
            where p.oid = to_regprocedure('/*schema*/' || changed.before) and a.grantee not in (0, p.proowner));
        execute format('drop function if exists /*schema*/%s', changed.before);
        execute format('create function /*schema*/%s language plpgsql as ''begin end''', changed.after);
        execute format('revoke all on function /*schema*/%s from public', split_part(changed.after, '(', 1));
        foreach caller in array callers loop
            execute format('grant execute on function /*schema*/%s to %s', split_part(changed.after, '(', 1), caller);
        end loop;
    end loop;
end
$reasons$;

create index audit_of_subscription on /*schema*/audit (subscription, id) where subscription is not null;

-- Whoever enqueues may write rows here, and must not be able to pass one off as a failed event that a handler waits for. Not
-- validated: what is there was written by functions, which know it.
alter table /*schema*/delivery add constraint delivery_job_is_no_head check (queue is null or not head) not valid;

-- Takes are counted by count_take: everybody who may use the schema could draw from these sequences, and so make deaths.
create or replace function /*schema*/make_counter() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'INSERT' then
        execute format('create sequence if not exists /*schema*/takes_%s', new.id);
        execute format('create sequence if not exists /*schema*/excused_%s', new.id);
        execute format('grant select on sequence /*schema*/takes_%1$s, /*schema*/excused_%1$s to public', new.id);
    else
        execute format('drop sequence if exists /*schema*/takes_%1$s, /*schema*/excused_%1$s', old.id);
    end if;
    return null;
end
$$;
do $counted$
declare
    n bigint;
begin
    for n in select c.id from /*schema*/cursor as c loop
        execute format('revoke all on sequence /*schema*/takes_%1$s, /*schema*/excused_%1$s from public', n);
        execute format('grant select on sequence /*schema*/takes_%1$s, /*schema*/excused_%1$s to public', n);
    end loop;
end
$counted$;

-- Within what drivers can hold, as in the log: whoever claims computes with it.
update /*schema*/delivery as d
set run_at = case when d.run_at < now() then now() else '9999-12-30 00:00Z' end
where d.run_at not between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z';
alter table /*schema*/delivery add constraint delivery_run_at_readable
    check (run_at between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z') not valid;
