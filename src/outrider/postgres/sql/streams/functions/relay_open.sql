-- relay_open: register the streams that a relay begins to write to, each with its start position, and the relay's first mark.
-- Runs before anything is written there, in its own transaction: if the relay dies, its writes are still known to be its own.
-- p_streams that the relay knows keep their position, unless p_adopt: then they continue from the given one.
-- Locks:  the cursor row, waiting for the batch that is being sent.
create or replace function /*schema*/relay_open(
    p_subscription text, p_streams text[], p_positions text[], p_adopt boolean default false
) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '10s'
as $$
begin
    perform /*schema*/relay_only(p_subscription);
    perform from /*schema*/cursor as c where c.subscription = p_subscription for update;
    insert into /*schema*/stream as s (subscription, name, position)
    select p_subscription, opened.name, opened.position from unnest(p_streams, p_positions) as opened (name, position)
    on conflict (subscription, name) do update set position = excluded.position where p_adopt;
    if not exists (select from /*schema*/stream_mark as m where m.subscription = p_subscription) then
        perform /*schema*/relay_mark(p_subscription);
    end if;
end
$$;
