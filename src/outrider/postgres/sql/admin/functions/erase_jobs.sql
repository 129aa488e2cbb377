-- erase_jobs: discard these jobs, also running ones, and delete their payloads and what is known of their failures.
-- The callers are erase and erase_events. Locks the jobs. Returns how many of them were pending, running or dead letters.
create or replace function /*schema*/erase_jobs(p_jobs bigint[]) returns bigint
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    gone record;
    owed bigint := 0;
begin
    for gone in
        update /*schema*/job as j
        set status = 'discarded', waits_for = null, buried_at = null, locked_by = null, locked_at = null, lease_token = null,
            lease_expires_at = null, cancelled_at = null, progress = null,
            payload = case when j.payload is not null then '{}'::jsonb end, trace_context = null, last_error_code = '(erased)',
            last_error = null, fingerprint = null, last_traceback = null, failure_history = /*schema*/scrubbed(j.failure_history)
        from (select j.id, j.status from /*schema*/job as j where j.id = any (p_jobs)) as was
        where j.id = was.id
        returning j.subscription, j.generation, j.job_key, was.status as was
    loop
        owed := owed + (gone.was in ('pending', 'in_flight', 'failed'))::integer;
        continue when gone.was not in ('pending', 'in_flight');
        if gone.job_key is not null then
            perform /*schema*/wake_jobs(array[gone.subscription]);
        end if;
        perform /*schema*/notify(/*schema*/generation_channel(gone.generation), gone.subscription);
    end loop;
    return owed;
end
$$;
