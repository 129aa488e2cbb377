-- poke: one wake-up per channel and event type of a statement that publishes. after_commit: the publishing process sends it by
-- itself. With the rights of the owner: whoever may insert into the log needs no other right.
create or replace function /*schema*/poke() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('outrider.notify', true) is distinct from 'after_commit' then
        perform /*schema*/notify(fresh.channel, fresh.event_type)
        from (select distinct channel, event_type from inserted) as fresh;
    end if;
    return null;
end
$$;
