-- resume_all: end pause_all. Subscriptions that are paused by name stay so. Notifies all workers, which may be asleep. Audited.
-- Returns whether all was paused.
create or replace function /*schema*/resume_all(p_by text default null, p_reason text default null) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    since timestamptz := (select s.updated_at from /*schema*/setting as s where s.name = 'paused' and s.value <> 0);
    was   boolean;
begin
    update /*schema*/setting as s set value = 0, updated_at = now() where s.name = 'paused' and s.value <> 0;
    was := found;
    perform /*schema*/note('resume_all', p_by, p_reason, null, null, jsonb_strip_nulls(jsonb_build_object(
        'paused_since', since, 'subscriptions', (select count(*) from /*schema*/subscription))));
    if was then
        perform /*schema*/wake(array(select s.name from /*schema*/subscription as s));
    end if;
    return was;
end
$$;
