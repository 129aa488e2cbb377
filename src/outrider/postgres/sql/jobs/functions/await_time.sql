-- await_time: the trigger of job. A job whose time has not come waits for it, whoever writes it: so a claim reads nothing that is
-- for later.
create or replace function /*schema*/await_time() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if new.status = 'pending' and new.run_at > clock_timestamp() then
        new.waits_for := 'time';
    elsif new.waits_for = 'time' then
        new.waits_for := null;
    end if;
    return new;
end
$$;
