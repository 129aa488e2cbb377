-- relay_ahead: note events that are in a stream already, ahead of the relay's cursor.
-- Returns how many of p_events are not of this log, which are not noted, and one of them.
create or replace function /*schema*/relay_ahead(
    p_subscription text, p_events uuid[], out strangers bigint, out stranger uuid
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
as $$
begin
    perform /*schema*/relay_only(p_subscription);
    with told as materialized (
        select distinct e.id, exists (select from /*schema*/outbox as o where o.id = e.id) as ours
        from unnest(p_events) as e (id)
    ),
    put as (
        insert into /*schema*/stream_ahead (subscription, event_id)
        select p_subscription, told.id from told where told.ours
        on conflict do nothing
    )
    select count(*), min(told.id::text)::uuid into strangers, stranger from told where not told.ours;
end
$$;
