-- retire: delete a subscription with its cursors, deliveries and jobs; its receipts stay. Audited with what was lost.
-- Refused (OR010) while workers serve it; or if events would be lost, unless p_force.
-- Locks:  the subscription and its cursors, waiting for the batches in progress.
-- Returns what was lost, counted up to 10,000. more: there may be more unread events than were counted.
create or replace function /*schema*/retire(
    p_name text, p_force boolean default false, p_by text default null, p_reason text default null,
    out unread bigint, out more boolean, out waiting bigint, out dead bigint
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '10s'
as $$
begin
    perform /*schema*/hold_subscription(p_name);
    if p_force is not true then
        perform /*schema*/refuse_served(p_name);
    end if;
    select u.events, u.more into unread, more from /*schema*/unread(p_name) as u;
    waiting := (select count(*) from (select from /*schema*/unfinished as u where u.subscription = p_name limit 10000) as u);
    dead := (select count(*) from (select from /*schema*/owed as d
                                   where d.subscription = p_name and d.status = 'failed' limit 10000) as d);
    if p_force is not true and (more or unread + waiting + dead > 0) then
        raise 'retiring % would lose events (% unread, % waiting for retry, % dead letters): let a worker handle them, rename it (`outrider subscription rename % NEW`), or use --force to lose them',
            p_name, case when more then 'at least ' else '' end || unread,
            waiting || case when waiting = 10000 then ' or more' else '' end,
            dead || case when dead = 10000 then ' or more' else '' end, p_name using errcode = 'OR010';
    end if;
    delete from /*schema*/delivery as d where d.subscription = p_name;
    delete from /*schema*/job as j where j.subscription = p_name;
    delete from /*schema*/subscription as s where s.name = p_name;
    perform /*schema*/note('retire', p_by, p_reason, p_name, null, jsonb_strip_nulls(jsonb_build_object(
        'forced', nullif(p_force, false), 'unread', unread, 'more', nullif(more, false), 'waiting', waiting, 'dead', dead)));
end
$$;
