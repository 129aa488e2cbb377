-- claim: lease the next jobs of these types to a worker, at most p_limit, and fewer if their payloads are large (lease).
-- Jobs whose lease has expired are reaped first, and jobs whose time has come are made claimable.
--
-- Order:  by claim_at: run_at, where one step of priority counts as much as a minute of waiting; then the older job.
-- p_queues: only of these queues; null = all. Jobs of a generation other than p_generation are left to its own workers while it has
--         any; with p_strict always.
-- p_suspect: whether one job whose worker died may be among them. A worker runs one of those at a time, so that at most one
--         healthy job can be mistaken for the cause, and only once.
-- Tenants: if more can be claimed than p_limit, tenants take turns (take_turns). The order above holds within one tenant.
-- Limits: the concurrency of a type over all workers, and of a key within a workspace. A job that must wait for its key is set
--         aside (waits_for) until a claim finds room for it (admit).
-- Locks:  the limits of the types that have any; then the jobs, FOR UPDATE SKIP LOCKED.
-- Reads:  only what can be claimed (lanes, pick), what has become due (admit_scheduled), and the first of what is for later.
-- Returns the jobs in their order, then one row without a job: the seconds until there may be more (due_in; null = nothing waits;
--         1 = others hold what is due), and the worker's jobs that are to be cancelled (stop). With p_limit 0 only that row.
create or replace function /*schema*/claim(
    p_worker uuid, p_names text[], p_limit integer, p_generation bigint default 0, p_queues text[] default null,
    p_suspect boolean default true, p_strict boolean default false
) returns setof /*schema*/claimed
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
    last    /*schema*/claimed;
    reaped  integer;
    names   text[];
    limited boolean;
    locked  boolean := false;
    moment  timestamptz;
    next_at timestamptz;
    found   record;
    limits  record;
    places  tid[] := '{}';
    cut     boolean := false;
    taken   integer := 0;
    due_in  double precision;
    looked  double precision;
    until   timestamp;
begin
    perform /*schema*/sees_all();
    reaped := /*schema*/reap(p_names);
    last.head := jsonb_build_object('stop', array(
        select j.id from /*schema*/job as j
        where j.locked_by = p_worker and j.status = 'in_flight' and j.cancelled_at is not null));
    if p_limit <= 0 then
        return next last;
        return;
    end if;
    select array_agg(s.name order by s.name), bool_or(s.concurrency is not null or s.key_concurrency is not null)
    into names, limited
    from /*schema*/subscription as s
    where s.name = any (p_names) and s.paused_at is null
      and not exists (select from /*schema*/setting as p where p.name = 'paused' and p.value <> 0);
    -- A type whose limits were removed may have jobs that still wait for their key.
    limited := limited or exists (select from /*schema*/job as j where j.subscription = any (names) and j.waits_for = 'key');
    if limited then
        perform /*schema*/hold_limits(names);
        locked := /*schema*/admit(names);
    end if;
    moment := clock_timestamp();
    next_at := least(/*schema*/admit_scheduled(names, moment), (
        select min(next.lease_expires_at) + interval '10 milliseconds' from unnest(p_names) as n (name)
        cross join lateral (
            select j.lease_expires_at from /*schema*/job as j
            where j.subscription = n.name and j.status = 'in_flight'
            order by j.lease_expires_at limit 1) as next));

    select l.lanes, l.partly into found from /*schema*/lanes(names, p_generation, p_queues, p_strict) as l;
    if p_suspect then
        select p.places, locked or p.held into places, locked
        from /*schema*/pick_suspect(names, p_generation, p_queues, limited, p_strict) as p;
    end if;
    if limited then
        select p.places, p.cut into limits
        from /*schema*/pick_limited(found.lanes, p_limit - cardinality(places), places) as p;
        places := places || limits.places;
        cut := limits.cut;
    else
        places := places || /*schema*/pick(found.lanes, p_limit - cardinality(places));
    end if;
    -- In a backlog every claim is full: look once a second what they pass over.
    looked := nullif(current_setting('outrider.looked_at', true), '')::double precision;
    if cardinality(places) = p_limit and (extract(epoch from moment) between looked and looked + 1) is not true then
        perform set_config('outrider.looked_at', extract(epoch from moment)::text, false);
        until := (select max(/*schema*/claim_at(j)) from /*schema*/job as j where j.ctid = any (places));
    end if;
    if places <> '{}' then
        return query select l.* from /*schema*/lease(places, p_worker, moment) as l;
        get diagnostics taken = row_count;
    end if;

    if cut or taken = p_limit or taken < cardinality(places) then
        due_in := 0;
    else
        due_in := extract(epoch from case when next_at < moment then moment else next_at end - moment);
        -- A job can be claimed and is still there: others have it locked. If they do not take it (they die or roll back), nobody
        -- is notified.
        if locked or exists (
            select from unnest(found.lanes) as l
            cross join lateral (select from /*schema*/job as j where /*schema*/in_lane(j, l) limit 1) as left_over
            where not limited or /*schema*/room(l.subscription, null) > 0) then
            due_in := least(due_in, 1);
            until := 'infinity';
        end if;
    end if;
    if until is not null then
        perform /*schema*/close_kept(found.lanes, case when p_suspect then names end, until);
    end if;
    if found.partly then
        due_in := least(due_in, 0.1);
    end if;
    if limited and taken = 0 and reaped = 0 then
        -- Only the locks on the limits were written, and others wait for them: do not wait for the disk.
        perform set_config('synchronous_commit', 'off', true);
    end if;
    last.head := last.head || jsonb_build_object(
        'due_in', due_in,
        'single', not limited and not found.partly and cardinality(found.lanes) = 1 and found.lanes[1].tenanted = 0);
    return next last;
end
$$;
