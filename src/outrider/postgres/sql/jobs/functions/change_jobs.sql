-- change_jobs: cancel these jobs, let them run now, or retry them: one batch of jobs_page. Audited: how many were changed, of which
--         types, and the first ids; a retry as replay does.
-- p_action: cancel (see cancel_job), run_now (pending jobs become due), retry (dead letters become pending, with all their attempts;
--         see replay).
-- p_states: a job that is in another state by now is left alone.
-- p_which: how the caller says that the jobs were chosen, for the audit. A long text is cut.
-- Locks:  the jobs, SKIP LOCKED: it waits for nobody, so that no transaction that enqueues onto several of them meets a deadlock.
-- Returns how many were changed; how many running ones were told to stop; how many there was nothing to do for: they are in another
--         state, were due already, or a retry skips them; and those that other transactions have locked: ask again for these.
create or replace function /*schema*/change_jobs(
    p_action text, p_jobs bigint[], p_states text[], p_by text default null, p_reason text default null,
    p_which jsonb default '{}',
    out changed integer, out stopping integer, out skipped integer, out held bigint[]
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    job    /*schema*/job;
    locked bigint[] := '{}';
    acted  bigint[] := '{}';
    wanted bigint[] := '{}';
begin
    perform /*schema*/sees_all(true);
    if p_action not in ('cancel', 'run_now', 'retry') then
        raise 'jobs can be changed by cancel, run_now and retry, not by %', quote_nullable(left(p_action, 100)) using errcode = 'OR010';
    end if;
    changed := 0;
    stopping := 0;
    for job in
        select d.* from /*schema*/job as d where d.id = any (p_jobs) order by d.id for update skip locked
    loop
        locked := locked || job.id;
        continue when (case job.status when 'in_flight' then 'running' when 'discarded' then 'cancelled' else job.status end
                       = any (p_states)) is not true or job.status = 'discarded';
        if p_action = 'cancel' then
            acted := acted || job.id;
            if /*schema*/cancel_job(job, p_by, p_reason) = 'cancelled' then
                changed := changed + 1;
            else
                stopping := stopping + 1;
            end if;
        elsif p_action = 'run_now' and job.status = 'pending' and job.run_at > clock_timestamp() then
            perform /*schema*/make_due(job);
            acted := acted || job.id;
            changed := changed + 1;
        elsif p_action = 'retry' and job.status = 'failed' then
            wanted := wanted || job.id;
        end if;
    end loop;
    if wanted <> '{}' then
        changed := (select count(*) from /*schema*/replay(wanted, p_by, p_reason => p_reason) as r where r.outcome = 'replayed');
    elsif acted <> '{}' then
        -- Name the type, or the job, if it is only one.
        perform /*schema*/note(
            p_action, p_by, p_reason, case when min(d.subscription) = max(d.subscription) then min(d.subscription) end,
            case when count(*) = 1 then min(d.event_id::text) end::uuid,
            jsonb_strip_nulls(jsonb_build_object(
                'jobs', count(*), 'stopping', nullif(stopping, 0), 'types', (array_agg(distinct d.subscription))[:20],
                'ids', (array_agg(d.event_id order by d.id))[:20],
                'which', case when length(p_which::text) <= 2000 then p_which else to_jsonb(left(p_which::text, 2000)) end)))
        from /*schema*/job as d where d.id = any (acted);
    end if;
    held := array(select d.id from /*schema*/job as d where d.id = any (p_jobs) and d.id <> all (locked) order by d.id);
    skipped := cardinality(p_jobs) - changed - stopping - cardinality(held);
end
$$;
