-- upkeep_begin: whether a run of upkeep is due and this caller shall do it: one of many workers, every p_every.
create or replace function /*schema*/upkeep_begin(p_every interval) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '200ms'
as $$
begin
    insert into /*schema*/upkeep as u (task) values ('run')
    on conflict (task) do update set ran_at = clock_timestamp()
    where u.ran_at not between clock_timestamp() - p_every and clock_timestamp();  -- in the future if the clock was set back
    return found;
exception when lock_not_available then
    return false;
end
$$;
