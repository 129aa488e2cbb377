-- relay_mark: store the positions of a relay's cursor and streams as a mark. The caller holds the cursor's lock.
-- Marks of the last 24 hours stay, and one before them: without traffic it may be the only one.
create or replace function /*schema*/relay_mark(p_subscription text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into /*schema*/stream_mark (subscription, positions, cursor)
    select p_subscription,
           coalesce((select jsonb_object_agg(s.name, s.position) from /*schema*/stream as s
                     where s.subscription = p_subscription), '{}'),
           to_jsonb(c)
    from /*schema*/cursor as c where c.subscription = p_subscription and c.generation = 0 and c.partition = 0;

    delete from /*schema*/stream_mark as m
    where m.subscription = p_subscription and m.at < (
        select max(old.at) from /*schema*/stream_mark as old
        where old.subscription = p_subscription and old.at < now() - interval '24 hours');
    delete from /*schema*/stream_replayed as r
    where r.subscription = p_subscription
      and r.at < (select min(m.at) from /*schema*/stream_mark as m where m.subscription = p_subscription);
end
$$;
