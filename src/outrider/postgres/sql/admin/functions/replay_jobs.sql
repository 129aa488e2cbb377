-- replay_jobs: of these ids, make the jobs pending again, except those whose unique key another job has. Returns the ids of those
-- that are pending. p_mark goes to their failure histories, p_reason to the audit. The caller is replay, which has locked the jobs.
-- Of jobs with the same unique key the newest comes first, and supersedes the others. So does a transaction that is enqueuing the
-- key: this waits 20 ms for the first of those and 1 ms for each other, because enqueues of the keys that it has revived wait for it.
create or replace function /*schema*/replay_jobs(
    p_jobs bigint[], p_new_generation bigint, p_payload jsonb, p_mark jsonb, p_reason jsonb
) returns bigint[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '20ms'
as $$
declare
    dead    /*schema*/job;
    revived bigint[] := '{}';
begin
    for dead in select j.* from /*schema*/job as j where j.id = any (p_jobs) order by j.id desc loop
        begin
            update /*schema*/job as j
            set status = 'pending', waits_for = null, closed = false, attempts = 0, crashes = 0, cycle = j.cycle + 1,
                run_at = now(), buried_at = null, payload = coalesce(p_payload, j.payload),
                generation = coalesce(p_new_generation, j.generation),
                failure_history = (case when jsonb_array_length(j.failure_history) >= 100 then j.failure_history - 0
                                        else coalesce(j.failure_history, '[]') end)
                                  || (jsonb_build_object('cycle', j.cycle) || p_mark)
            where j.id = dead.id;
        exception
            when unique_violation then  -- job_unique or job_once
                continue;
            when lock_not_available then
                perform set_config('lock_timeout', '1ms', true);
                continue;
        end;
        revived := revived || dead.id;
        if p_payload is not null and dead.seq is null then
            -- Whose job it was: when it is done, erase finds that nowhere else.
            insert into /*schema*/audit (by, action, subscription, event_id, details)
            values (p_mark ->> 'by', 'edit', dead.subscription, dead.event_id,
                    jsonb_build_object('payload', p_payload, 'before', dead.payload, 'workspace', dead.workspace_id,
                                       'job', coalesce(dead.job_key, '')) || p_reason);
        end if;
    end loop;
    return revived;
end
$$;
