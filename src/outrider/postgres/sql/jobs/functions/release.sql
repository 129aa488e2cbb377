-- release: end the lease of a running job. p_verdict:
--   later      it failed: pending again after p_delay seconds; p_counted = this used an attempt
--   dead       it failed for good: a dead letter
--   back       handed back: as if it had not been claimed
--   lapsed     its lease expired while its worker lives: as back, and noted in the history
--   crashed    its worker died: the attempt is given back and a crash counted; after the third it is a dead letter
--   cancelled  it stopped because it was cancelled
-- p_job has the traceback of this failure, if there is one. The caller has locked the row. If another transaction is enqueuing the
-- job's unique key, this waits for it up to the caller's lock_timeout.
-- Returns retry, buried, back or cancelled; superseded if another job with its unique key was enqueued while it ran.
create or replace function /*schema*/release(
    p_job /*schema*/job, p_verdict text, p_delay double precision default 0, p_code text default null,
    p_message text default null, p_counted boolean default true, p_worker text default null
) returns text
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
declare
    job     /*schema*/job := p_job;
    code    text := p_code;
    message text := p_message;
    told    text;
begin
    job.locked_by := null;
    job.locked_at := null;
    job.lease_token := null;
    job.lease_expires_at := null;
    job.cancelled_at := null;
    case p_verdict
        when 'later' then
            told := 'retry';
            job.status := 'pending';
            job.run_at := clock_timestamp() + p_delay * interval '1 second';
            job.attempts := job.attempts - (not p_counted)::integer;
            job.crashes := 0;
        when 'dead' then
            told := 'buried';
            job.status := 'failed';
        when 'back' then
            told := 'back';
            job.status := 'pending';
            job.attempts := job.attempts - 1;
        when 'lapsed' then
            told := 'back';
            job.status := 'pending';
            job.attempts := job.attempts - 1;
            code := 'lease_lost';
            message := 'its lease ran out while its worker was alive';
        when 'crashed' then
            job.crashes := job.crashes + 1;
            job.attempts := job.attempts - 1;
            code := 'worker_crash';
            message := 'the process that ran it died: ' || job.crashes || case job.crashes when 1 then ' time' else ' times' end;
            told := case when job.crashes >= 3 then 'buried' else 'retry' end;
            job.status := case when job.crashes >= 3 then 'failed' else 'pending' end;
            job.run_at := clock_timestamp();
        when 'cancelled' then
            told := 'cancelled';
            job.status := 'discarded';
            code := 'cancelled';
            message := coalesce(p_message, 'it was cancelled while it ran');
    end case;
    if job.status = 'pending' and p_job.cancelled_at is not null then
        told := 'cancelled';
        job.status := 'discarded';
        code := 'cancelled';
        message := 'it was cancelled while it ran';
    end if;
    if code is not null then
        job.last_error_code := code;
        job.last_error := message;
        job.last_traceback := case when p_verdict in ('later', 'dead') and told <> 'cancelled' then job.last_traceback end;
        job.first_failed_at := coalesce(job.first_failed_at, now());
        job.failure_history := (case when jsonb_array_length(job.failure_history) >= 100 then job.failure_history - 0
                                     else coalesce(job.failure_history, '[]') end)
                               || /*schema*/failure(job.cycle, p_job.attempts, code, message, p_worker);
    end if;
    -- Two sessions may both find no other job with the unique key. Then the unique index decides, and the second pass supersedes
    -- this one. A running job does not supersede a closed one: it may have started before the transactions that kept this one
    -- had committed. What failed for good is superseded too, because a replay would run it after the newer job.
    for attempt in 1..2 loop
        if job.status in ('pending', 'failed') and job.unique_key is not null and job.seq is null and (
            attempt = 2 or p_job.superseded_at is not null
            or exists (select from /*schema*/job as d
                       where d.subscription = job.subscription
                         and coalesce(d.workspace_id, '') = coalesce(job.workspace_id, '')
                         and d.unique_key = job.unique_key and d.status = 'pending' and d.seq is null and not d.closed)
            or not p_job.closed and exists (
                select from /*schema*/job as d
                where d.subscription = job.subscription and coalesce(d.workspace_id, '') = coalesce(job.workspace_id, '')
                  and d.unique_key = job.unique_key and d.status = 'in_flight' and d.seq is null and d.id > job.id)) then
            told := 'superseded';
            job.status := 'discarded';
            job.failure_history := coalesce(job.failure_history, '[]') || jsonb_build_object(
                'cycle', job.cycle, 'superseded_at', clock_timestamp());
        end if;
        job.buried_at := case when job.status = 'failed' then now() end;
        if job.status = 'pending' and job.unique_key is not null then
            begin
                perform /*schema*/rewrite(job);
                exit;
            exception when unique_violation then
                null;
            end;
        else
            perform /*schema*/rewrite(job);
            exit;
        end if;
    end loop;
    -- In every case: the job is due now, or at a time that only its worker knows, which may be gone by then; or there is room.
    perform /*schema*/notify(
        /*schema*/generation_channel(job.generation),
        job.subscription);
    return told;
end
$$;
