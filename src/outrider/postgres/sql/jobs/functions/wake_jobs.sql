-- wake_jobs: notify the workers that run jobs of these types, whatever their generation: there may be room for another job.
create or replace function /*schema*/wake_jobs(p_names text[]) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/notify(
        /*schema*/generation_channel(each.generation), each.name)
    from (select distinct w.generation, served.name
          from /*schema*/worker as w cross join unnest(w.subscriptions) as served (name)
          where served.name = any (p_names)) as each;
end
$$;
