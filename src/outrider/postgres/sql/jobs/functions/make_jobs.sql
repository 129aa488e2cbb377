-- make_jobs: make jobs of these events of a job's subscription, except those that have a receipt or are jobs already. Events with the
-- same idempotency key are one job: while it waits or runs by the index job_once, and afterwards by the receipt. For route.
-- Locks:  an event whose key another transaction holds in job_once (an operator changes that job, or replays a dead letter of the
--         key) is held. It waits 20 ms for the first of those and then 1 ms at a time: one transaction may hold them all.
-- Returns the number of new jobs, and the events that are held.
create or replace function /*schema*/make_jobs(
    p_subscription text, p_seqs bigint[], p_queue text, p_priority integer, out made bigint, out held bigint[]
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
    set lock_timeout = '20ms'
as $$
#variable_conflict use_column
declare
    rest   bigint[] := p_seqs;
    many   integer := cardinality(p_seqs);  -- all at once; if one is held, half as many, and so on
    seqs   bigint[];
    number bigint;
    keyed  bigint[];
begin
    made := 0;
    held := '{}';
    while rest <> '{}' loop
        seqs := rest[1:many];
        begin
            with inserted as (
                insert into /*schema*/job (
                    subscription, generation, seq, event_id, event_type, run_at, queue, priority, job_key, unique_key, workspace_id)
                select p_subscription, o.generation, o.seq, o.id, o.event_type, clock_timestamp(), p_queue, p_priority,
                       o.aggregate_id,
                       case when o.idempotency_key <> o.id::text then o.event_type || ':' || o.idempotency_key end, o.workspace_id
                from /*schema*/outbox as o
                where o.seq = any (seqs) and o.seq >= seqs[1] and o.seq <= seqs[cardinality(seqs)]
                  and not exists (
                      select from /*schema*/event_handled as h
                      where h.handler_name = p_subscription
                        and h.idempotency_key = /*schema*/receipt_key(
                            o.workspace_id, o.event_type, nullif(o.idempotency_key, o.id::text), o.id))
                order by o.seq
                on conflict do nothing
                returning id, generation, unique_key
            ),
            poked as (
                select /*schema*/notify(/*schema*/generation_channel(g.generation), p_subscription)
                from (select distinct inserted.generation from inserted) as g
            )
            select (select count(*) from inserted) + 0 * (select count(*) from poked),
                   (select array_agg(inserted.id) from inserted where inserted.unique_key is not null)
            into number, keyed;
            -- A job that was settled while the statement above ran left a receipt that its snapshot did not show.
            if keyed is not null then
                delete from /*schema*/job as d
                where d.id = any (keyed) and exists (
                    select from /*schema*/event_handled as h
                    where h.handler_name = p_subscription
                      and h.idempotency_key = /*schema*/in_workspace(d.workspace_id, d.unique_key));
                if found then
                    number := number - (select cardinality(keyed) - count(*) from /*schema*/job as d where d.id = any (keyed));
                end if;
            end if;
            made := made + number;
            many := 2 * cardinality(seqs);
        exception when lock_not_available then
            perform set_config('lock_timeout', '1ms', true);
            if cardinality(seqs) > 1 then
                many := cardinality(seqs) / 2;
                continue;
            end if;
            held := held || rest[1];
            many := 1;
        end;
        rest := rest[cardinality(seqs) + 1:];
    end loop;
end
$$;
