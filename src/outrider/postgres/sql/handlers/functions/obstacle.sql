-- obstacle: why a take must not read from the locked cursor now, as an outcome of take; null if it may.
-- Reads:  setting by name, delivery by seq and by due time.
create or replace function /*schema*/obstacle(
    p_cursor /*schema*/cursor, p_subscription /*schema*/subscription, p_knows text[], p_armed bigint, p_first_seq bigint
) returns text
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if p_subscription.paused_at is not null
       or exists (select from /*schema*/setting as s where s.name = 'paused' and s.value <> 0) then
        return 'paused';
    elsif not p_subscription.event_types <@ p_knows then
        return 'unknown';
    elsif p_cursor.open_until > now() and p_armed is null then
        return 'open';
    elsif p_first_seq <= p_cursor.seq and p_armed is null then
        return case when not exists (
            -- The first parked event was late, and has not been read again since it failed: read on.
            select from /*schema*/delivery as d
            where d.subscription = p_cursor.subscription and d.seq = p_first_seq and not d.reached) and not exists (
            select from /*schema*/delivery as d
            where d.subscription = p_cursor.subscription and d.generation = p_cursor.generation
              and d.partition = p_cursor.partition and d.status = 'pending' and d.head and d.reached and d.run_at <= now())
            then 'waiting' end;
    end if;
    return null;
end
$$;
