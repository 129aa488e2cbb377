-- pause_all: stop takes and claims of all subscriptions, future ones included; work in progress is finished. Audited.
-- Returns how many subscriptions there are.
create or replace function /*schema*/pause_all(p_by text default null, p_reason text default null) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    held bigint := (select count(*) from /*schema*/subscription);
begin
    update /*schema*/setting as s set value = 1, updated_at = now() where s.name = 'paused' and s.value = 0;
    perform /*schema*/note('pause_all', p_by, p_reason, null, null, jsonb_build_object('subscriptions', held));
    return held;
end
$$;
