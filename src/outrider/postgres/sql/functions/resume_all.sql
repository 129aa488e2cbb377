-- resume_all: takes read again, except where a subscription is paused by itself. Pokes all workers, which may be asleep.
-- Whether all was paused. Audited.
create or replace function /*schema*/resume_all(p_by text default null, p_reason text default null) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    since timestamptz := (select s.updated_at from /*schema*/setting as s where s.name = 'paused' and s.value <> 0);
    was   boolean;
begin
    update /*schema*/setting as s set value = 0, updated_at = now() where s.name = 'paused' and s.value <> 0;
    was := found;
    perform /*schema*/note('resume_all', p_by, p_reason, null, null, jsonb_strip_nulls(jsonb_build_object(
        'paused_since', since, 'subscriptions', (select count(*) from /*schema*/subscription))));
    if was then
        perform pg_notify(poke.channel, poke.event_type)
        from (select distinct case c.generation when 0 then 'outbox_default' else 'outbox_gen_' || c.generation end as channel,
                     wanted.event_type
              from /*schema*/cursor as c join /*schema*/subscription as s on s.name = c.subscription
              cross join unnest(coalesce(s.event_types, array[''])) as wanted (event_type)
              union
              select case w.generation when 0 then 'outbox_default' else 'outbox_gen_' || w.generation end, s.name
              from /*schema*/subscription as s join /*schema*/worker as w on s.name = any (w.subscriptions)
              where s.kind = 'job') as poke;
    end if;
    return was;
end
$$;
