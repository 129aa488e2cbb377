-- lease: lease jobs that the caller has locked to a worker, and return what it needs to run them, in the order of claim.
-- If the payloads exceed batch_bytes, the last jobs are left pending. If they and the trace contexts exceed 256 KiB, both are null,
-- and the worker asks for them when it has the leases (payloads.sql): Postgres commits a claim only when its answer is sent, which a
-- frozen worker does not read.
-- Reads:  the jobs by place (ctid), subscription, and for jobs of events the log by seq, in the segments from the first to the last
--         of their events. Opening all segments would be a third of the cost of leasing one job.
create or replace function /*schema*/lease(p_places tid[], p_worker uuid, p_moment timestamptz)
    returns setof /*schema*/claimed
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_bitmapscan = off
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
#variable_conflict use_column
declare
    token bigint := nextval('/*schema*/lease_token');
    first bigint;
    last  bigint;
    bytes bigint;
    ids   bigint[];
    fits  integer;
begin
    perform /*schema*/sees_all();
    select min(d.seq), max(d.seq), sum(/*schema*/stored_at_most(d.payload)) into first, last, bytes
    from unnest(p_places) as q (place) join /*schema*/job as d on d.ctid = q.place;
    if cardinality(p_places) > 1 and (first is not null or bytes >= /*schema*/batch_bytes()) then
        select sum(case when d.payload is not null then /*schema*/stored_at_most(d.payload) else (
                       select /*schema*/stored_at_most(o.payload) from /*schema*/outbox as o
                       where o.seq = d.seq and o.seq between first and last limit 1) end),
               array_agg(d.id order by q.n)
        into bytes, ids
        from unnest(p_places) with ordinality as q (place, n) join /*schema*/job as d on d.ctid = q.place;
        if bytes >= /*schema*/batch_bytes() then
            fits := /*schema*/fitting($payloads$
                select coalesce(d.payload, o.payload)
                from unnest($1) with ordinality as q (id, n) join /*schema*/job as d on d.id = q.id
                left join lateral (select o.payload from /*schema*/outbox as o where o.seq = d.seq limit 1) as o
                    on d.payload is null
                order by q.n$payloads$, ids);
            if fits is not null then
                p_places := p_places[1 : fits];
            end if;
        end if;
    end if;
    return query
    with leased as (
        update /*schema*/job as d
        set status = 'in_flight', attempts = d.attempts + 1, locked_by = p_worker, locked_at = p_moment,
            lease_token = token, lease_expires_at = p_moment + coalesce(s.lease, interval '5 minutes')
        from unnest(p_places) as q (place), /*schema*/subscription as s
        where d.ctid = q.place and s.name = d.subscription
        returning d.*, /*schema*/claim_at(d), extract(epoch from d.lease_expires_at - p_moment)::double precision as lease
    )
    select null::jsonb, t.id, t.lease_token, t.subscription, t.lease, t.attempts, t.crashes, t.queue, t.claim_at,
           t.event_id, coalesce(t.event_type, t.subscription), coalesce(o.event_version, t.event_version),
           coalesce(o.occurred_at, t.created_at), coalesce(o.source, t.source), t.generation, coalesce(o.workspace_id, t.workspace_id),
           coalesce(o.aggregate_id, t.job_key),
           case when sum(texts.bytes) over () <= 262144 then texts.payload end,
           case when sum(texts.bytes) over () <= 262144 then texts.trace end,
           case when o.seq is not null then jsonb_build_object(
               'seq', o.seq, 'target', o.target, 'content_class', o.content_class, 'channel', o.channel,
               'aggregate_kind', o.aggregate_kind, 'entity_version', o.entity_version,
               'idempotency_key', coalesce(o.idempotency_key, o.id::text), 'origin', o.origin) end
    from leased as t
    left join lateral (
        select o.* from /*schema*/outbox as o where o.seq = t.seq and o.seq between first and last limit 1) as o
        on t.seq is not null
    cross join lateral (
        select made.*, coalesce(octet_length(made.payload), 0) + coalesce(octet_length(made.trace), 0) as bytes
        from (select /*schema*/as_text(coalesce(t.payload, o.payload)) as payload,
                     nullif(/*schema*/as_text(coalesce(o.trace_context, t.trace_context)), '') as trace offset 0) as made) as texts
    order by t.claim_at, t.id;
end
$$;
