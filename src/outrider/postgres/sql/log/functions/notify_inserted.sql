-- notify_inserted: the trigger of the log, for whoever inserts by other means than Python's publish (SQL, COPY): one notification
-- per channel and event type of a statement. With the rights of the owner: whoever may insert needs no other right.
create or replace function /*schema*/notify_inserted() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/notify(fresh.channel, fresh.event_type)
    from (select distinct channel, event_type from inserted) as fresh;
    return null;
end
$$;
