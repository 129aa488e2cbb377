-- move_generation: let the workers of another generation handle the events of one; to itself: back to its own workers. Audited.
-- A generation without cursors that has events at p_subscription is opened there first. Jobs that wait become jobs of p_to, for good.
-- Locks:  the generation's cursors, waiting for the batches in progress; then the jobs, waiting for transactions that enqueue onto
--         them. Up to 10 s for each, because nobody takes events of the generation meanwhile.
-- Returns one row per subscription that has cursors or waiting jobs of it.
create or replace function /*schema*/move_generation(
    p_from bigint, p_to bigint, p_by text default null, p_subscription text default null,
    p_reason text default null
) returns table (subscription text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '10s'
as $$
#variable_conflict use_column
begin
    perform /*schema*/sees_all(true);
    if p_to < 0 then
        raise 'generation % does not exist', p_to using errcode = 'OR006';
    end if;
    -- From the floor on: what transactions left that finished late is above it.
    if exists (select from /*schema*/outbox as o
               where o.generation = p_from and o.seq > (
                   select min(c.floor) from /*schema*/cursor as c
                   where c.subscription = p_subscription and c.generation = 0)) then
        perform /*schema*/open_generation(p_subscription, p_from);
    end if;
    perform from /*schema*/cursor as c
    where c.generation = p_from and c.subscription = coalesce(p_subscription, c.subscription)
    order by c.subscription, c.generation, c.partition for update;
    return query
    with moved as (
        update /*schema*/cursor as c set served_by = nullif(p_to, p_from)
        where c.generation = p_from and c.subscription = coalesce(p_subscription, c.subscription)
        returning c.subscription
    ),
    rewritten as (
        update /*schema*/job as j set generation = p_to
        where j.generation = p_from and j.status = 'pending' and j.subscription = coalesce(p_subscription, j.subscription)
          and p_to <> p_from
        returning j.subscription
    ),
    changed as (
        select moved.subscription, null::bigint as jobs from moved group by moved.subscription
        union all
        select rewritten.subscription, count(*) from rewritten group by rewritten.subscription
    ),
    told as (
        insert into /*schema*/audit (by, action, subscription, details)
        select /*schema*/signed(p_by), 'move_generation', changed.subscription,
               jsonb_strip_nulls(jsonb_build_object(
                   'from', p_from, 'to', p_to, 'jobs', changed.jobs, 'reason', left(p_reason, 2000)))
        from changed
    )
    select changed.subscription from changed order by 1;
    perform /*schema*/wake_jobs(array(
        select s.name from /*schema*/subscription as s where s.kind = 'job' and s.name = coalesce(p_subscription, s.name)));
end
$$;
