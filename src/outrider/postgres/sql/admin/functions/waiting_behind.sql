-- waiting_behind: the events that wait until this one is handled or a dead letter, because they have its key, by their position in the
-- log after p_after. At most p_limit of each subscription.
-- Reads:  delivery_of_event, then delivery_line.
create or replace function /*schema*/waiting_behind(
    p_event_id uuid, p_subscription text default null, p_after bigint default 0, p_limit integer default 50
) returns table (subscription text, event_id uuid, seq bigint, event_type text, attempts integer, since timestamptz)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_sort = off
    set jit = off
as $$
#variable_conflict use_column
begin
    perform /*schema*/sees_all();
    return query
    select f.subscription, f.event_id, f.seq, f.event_type, f.attempts, f.created_at
    from /*schema*/delivery as d
    cross join lateral (
        select f.* from /*schema*/delivery as f
        where f.subscription = d.subscription and f.generation = d.generation and f.ordering_key = d.ordering_key
          and f.status = 'pending' and f.seq > greatest(d.seq, p_after)
        order by f.seq limit p_limit) as f
    where d.event_id = p_event_id and d.status = 'pending' and (p_subscription is null or d.subscription = p_subscription)
    order by f.subscription, f.seq;
end
$$;
