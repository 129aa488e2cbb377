-- move_generation: let the workers of another generation handle the events of one; to itself: back to its own workers. Audited.
-- Locks:  the generation's cursors, waiting for the batches in progress.
-- Returns one row per subscription that has cursors of it.
create or replace function /*schema*/move_generation(
    p_from bigint, p_to bigint, p_by text default null, p_subscription text default null,
    p_reason text default null
) returns table (subscription text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
as $$
#variable_conflict use_column
begin
    perform /*schema*/sees_all(true);
    if p_to < 0 then
        raise 'generation % does not exist', p_to using errcode = 'OR006';
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
    told as (
        insert into /*schema*/audit (by, action, subscription, details)
        select /*schema*/signed(p_by), 'move_generation', moved.subscription,
               jsonb_strip_nulls(jsonb_build_object('from', p_from, 'to', p_to, 'reason', left(p_reason, 2000)))
        from (select distinct subscription from moved) as moved
    )
    select distinct moved.subscription from moved order by 1;
end
$$;
