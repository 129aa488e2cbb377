-- route: take the next events of a job's subscription and make jobs of them, in one statement and its own transaction.
-- Skips events that have a receipt or are jobs already. Events with the same idempotency key are one job: while it waits or
-- runs by the index job_once, and afterwards by the receipt.
-- Returns the outcome of the take, and the number of new jobs.
create or replace function /*schema*/route(
    p_subscription text, p_limit integer, p_scan integer, p_knows text[], p_queue text, p_priority integer,
    out outcome text, out routed bigint
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set jit = off
as $$
#variable_conflict use_column
declare
    keyed bigint[];
begin
    perform /*schema*/sees_all();
    with taken as materialized (
        select t.* from /*schema*/take(p_subscription, null, p_limit, p_scan, 0, p_knows) as t
    ),
    made as (
        insert into /*schema*/job (
            subscription, generation, seq, event_id, event_type, run_at, queue, priority, job_key, unique_key, workspace_id)
        select p_subscription, t.generation, t.seq, t.id, t.event_type, clock_timestamp(), p_queue, p_priority, t.aggregate_id,
               case when t.idempotency_key <> t.id::text then t.event_type || ':' || t.idempotency_key end,
               t.workspace_id
        from taken as t
        where t.seq is not null
          and not exists (
              select from /*schema*/event_handled as h
              where h.handler_name = p_subscription
                and h.idempotency_key = /*schema*/receipt_key(
                    t.workspace_id, t.event_type, nullif(t.idempotency_key, t.id::text), t.id))
        order by t.seq
        on conflict do nothing
        returning id, generation, unique_key
    ),
    poked as (
        select /*schema*/notify(
            /*schema*/generation_channel(g.generation),
            p_subscription)
        from (select distinct made.generation from made) as g
    )
    select (select t.outcome from taken as t where t.seq is null),
           (select count(*) from made) + 0 * (select count(*) from poked),
           (select array_agg(made.id) from made where made.unique_key is not null)
    into outcome, routed, keyed;
    -- A job that was settled while the statement above ran left a receipt that its snapshot did not show.
    if keyed is not null then
        delete from /*schema*/job as d
        where d.id = any (keyed) and exists (
            select from /*schema*/event_handled as h
            where h.handler_name = p_subscription
              and h.idempotency_key = /*schema*/in_workspace(d.workspace_id, d.unique_key));
        if found then
            routed := routed - (select cardinality(keyed) - count(*) from /*schema*/job as d where d.id = any (keyed));
        end if;
    end if;
end
$$;
