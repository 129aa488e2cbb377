-- narrow: remove event types from a subscription, which keeps at least one. Audited with the number of lost events.
-- Refused (OR010) while events of these types wait for a retry; or are unread, unless p_force.
-- Locks:  the subscription and its cursors, waiting for the batches in progress.
-- Returns how many unread events of these types are lost.
create or replace function /*schema*/narrow(
    p_name text, p_types text[], p_force boolean default false, p_by text default null, p_reason text default null
) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '10s'
as $$
declare
    told   text := array_to_string(p_types, ', ');
    wanted text[];
    parked bigint;
    lost   bigint;
begin
    perform /*schema*/hold_subscription(p_name);
    wanted := (select s.event_types from /*schema*/subscription as s where s.name = p_name);
    if cardinality(p_types) > 0 is not true then
        raise 'no event type to remove from % was named', p_name using errcode = 'OR010';
    end if;
    if not coalesce(p_types <@ wanted, false) then
        raise '% does not want %; it wants %', p_name,
            (select string_agg(t, ', ') from unnest(p_types) as t where t <> all (coalesce(wanted, '{}'))),
            coalesce((select nullif(string_agg(t, ', ' order by t), '') from unnest(wanted) as t), 'every type')
            using errcode = 'OR010';
    end if;
    if wanted <@ p_types then
        raise '% would have no event types left: use `outrider subscription retire %`', p_name, p_name using errcode = 'OR010';
    end if;
    parked := (select count(*) from /*schema*/owed as d
               where d.subscription = p_name and d.status in ('pending', 'in_flight') and d.event_type = any (p_types));
    if parked > 0 then
        raise '% events of % wait for a retry in %: let code that knows these types handle them first', parked, told, p_name
            using errcode = 'OR010';
    end if;
    lost := (select u.events from /*schema*/unread(p_name) as u);
    update /*schema*/subscription as s
    set event_types = array(select kept.event_type from unnest(s.event_types) as kept (event_type)
                            where not kept.event_type = any (p_types) order by 1)
    where s.name = p_name;
    lost := lost - (select u.events from /*schema*/unread(p_name) as u);
    if lost > 0 and p_force is not true then
        raise '% has % unread events of %: let code that knows these types handle them first, or use --force --yes to lose them',
            p_name, lost || case when lost = 10000 then ' or more' else '' end, told using errcode = 'OR010';
    end if;
    perform /*schema*/note('narrow', p_by, p_reason, p_name, null, jsonb_build_object('types', p_types, 'lost', lost));
    return lost;
end
$$;
