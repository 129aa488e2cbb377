-- wake: notify the workers of these subscriptions although nothing was published or enqueued.
-- Readers of events are woken by event type, as a publisher wakes them; workers that run jobs, by job type.
create or replace function /*schema*/wake(p_names text[]) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/notify(
        /*schema*/generation_channel(each.generation), each.kind)
    from (select c.generation, wanted.event_type as kind
          from /*schema*/subscription as s join /*schema*/cursor as c on c.subscription = s.name
          cross join unnest(coalesce(s.event_types, array[''])) as wanted (event_type)
          where s.name = any (p_names)
          group by 1, 2) as each;
    perform /*schema*/wake_jobs(p_names);
end
$$;
