-- rollup_verify: repeat the checks of rollup_preflight for an installed rollup, and check that all objects that install creates exist
-- unchanged. Raises OR007 if there is no such rollup.
create or replace function /*schema*/rollup_verify(p_name text)
    returns table (topic text, passed boolean, value text, detail text, blocks boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    rollup constant /*schema*/rollup := (select r from /*schema*/rollup as r where r.name = p_name);
    part   record;
    faults  text[];
    jobs   bigint;
    failed text;
begin
    if rollup.name is null then
        raise 'there is no rollup %', quote_nullable(p_name)
            using errcode = 'OR007', hint = 'outrider rollup install makes one.';
    end if;
    part := /*schema*/rollup_parts(rollup.spec);
    return query select p.* from /*schema*/rollup_preflight(rollup.spec) as p;

    topic := 'installed'; blocks := true;
    faults := array(
        select format('the function %s is missing', wanted.name)
        from (values ('rollup_stage_' || part.slug, true), ('rollup_note_' || part.slug, rollup.spec ? 'notify')) as wanted (name, needed)
        where wanted.needed and not exists (
            select from pg_proc as p where p.proname = wanted.name and p.pronamespace = (
                select c.relnamespace from pg_class as c where c.oid = '/*schema*/rollup'::regclass))
        union all
        select format('the trigger outrider_rollup_%s is missing or disabled: nothing is staged', part.slug)
        where rollup.spec ->> 'table' is not null and not exists (
            select from pg_trigger as t where t.tgrelid = part.source and t.tgname = 'outrider_rollup_' || part.slug
              and t.tgenabled in ('O', 'A'))
        union all
        select format('the trigger outrider_rollup_%s is not as it was made: %s', part.slug, pg_get_triggerdef(t.oid))
        from pg_trigger as t where t.tgrelid = part.source and t.tgname = 'outrider_rollup_' || part.slug
          and pg_get_triggerdef(t.oid) <> rollup.trigger
        union all
        select format('the trigger outrider_rollup_%s is disabled on %s', part.slug, t.tgrelid::regclass)
        from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid
        where t.tgname = 'outrider_rollup_' || part.slug and t.tgparentid <> 0 and t.tgenabled not in ('O', 'A')
          and p.proname = 'rollup_stage_' || part.slug
        union all
        select format('the CHECK constraint %s of %s is not as it was made', u ->> 'name', u ->> 'table')
        from jsonb_array_elements(rollup.undo) as u
        where u ->> 'kind' = 'check' and not exists (
            select from pg_constraint as k where k.conrelid = to_regclass(u ->> 'table') and k.conname = u ->> 'name'
              and pg_get_constraintdef(k.oid) = u ->> 'after')
        union all
        select format('the function %s is not as it was made', p.proname) from pg_proc as p
        where p.proname in ('rollup_stage_' || part.slug, 'rollup_note_' || part.slug)
          and p.pronamespace = (select c.relnamespace from pg_class as c where c.oid = '/*schema*/rollup'::regclass)
          and not exists (select from /*schema*/rollup_commands(rollup.spec) as c
                          where starts_with(c.command, format('create or replace function /*schema*/%I(', p.proname))
                            and right(c.command, length(quote_literal(p.prosrc)) + 4) = ' as ' || quote_literal(p.prosrc)));
    passed := faults = '{}' and rollup.uninstalled_at is null;
    value := case when passed then 'COMPLETE' when rollup.uninstalled_at is not null then 'UNINSTALLED' else 'BROKEN' end;
    detail := case value when 'COMPLETE' then 'since ' || rollup.installed_at
                         when 'UNINSTALLED' then 'it is here only for rows that wait'
                         else array_to_string(faults, '; ') || ': run outrider rollup install' end;
    return next;

    topic := 'functions';
    faults := array(
        select format('%s %s', p.oid::regprocedure, wrong.what)
        from pg_proc as p cross join lateral (values
            ('is not SECURITY DEFINER', not p.prosecdef),
            ('has no pinned search_path', not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)),
            ('may be called by everybody', has_function_privilege('public', p.oid, 'execute'))) as wrong (what, holds)
        where p.proname in ('rollup_stage_' || part.slug, 'rollup_note_' || part.slug) and wrong.holds
          and p.pronamespace = (select c.relnamespace from pg_class as c where c.oid = '/*schema*/rollup'::regclass));
    passed := faults = '{}';
    value := case when passed then 'PINNED' else 'OPEN' end;
    detail := case when passed then 'SECURITY DEFINER, pinned search_path, revoked from PUBLIC'
                   else array_to_string(faults, '; ') || ': run outrider rollup install' end;
    return next;

    topic := 'schedule'; blocks := false; jobs := 0;
    if exists (select from pg_extension where extname = 'pg_cron') then
        execute 'select count(*) from cron.job as j where j.jobname = $1 and j.active' into jobs using part.job;
        execute 'select d.return_message from cron.job_run_details as d join cron.job as j on j.jobid = d.jobid '
                'where j.jobname = $1 and d.status = ''failed'' and d.runid = ('
                'select max(o.runid) from cron.job_run_details as o where o.jobid = d.jobid and o.end_time is not null)'
            into failed using part.job;
    end if;
    passed := jobs = case rollup.scheduler when 'cron' then 1 else 0 end and failed is null;
    value := upper(rollup.scheduler);
    detail := case
        when failed is not null then 'its last run by pg_cron failed: ' || failed
        when passed and jobs = 1 then format('pg_cron runs the job %s', part.job)
        when passed then 'the workers of its app tick'
        when rollup.scheduler = 'worker' then format('pg_cron has a job %s although workers tick: unschedule it', part.job)
        else format('pg_cron has %s active jobs %s instead of one: run outrider rollup install', jobs, part.job) end;
    return next;
end
$$;
