-- Bounds: no producer can stop the others.
-- breaking: no
-- functions: b7804cc9bdda0635

-- Receipts that hold texts say whose they are, so that erase finds them when the job, or the event, is gone.
alter table /*schema*/event_handled
    add column workspace_id text,
    add column job_key      text;
comment on column /*schema*/event_handled.workspace_id is 'whose result and failure_history these are; null where there is neither';
comment on column /*schema*/event_handled.job_key is 'the same, of a job that was enqueued: its key';

-- Dead letters keep the last frames of the traceback.
alter table /*schema*/delivery add column last_traceback text check (octet_length(last_traceback) <= 16384);
comment on column /*schema*/delivery.last_traceback is 'where last_error was raised: the innermost frames, of a handler or a job';

-- A job says of which event it came.
alter table /*schema*/delivery add column caused_by uuid;
comment on column /*schema*/delivery.caused_by is 'the event, or the job, whose handler enqueued this job';
drop function if exists /*schema*/enqueue_one(
    text, jsonb, uuid, timestamptz, integer, text, text, text, text, integer, text, text, jsonb, bigint, boolean);
-- Whoever may write the columns of a job may write this one, too.
do $caused$
declare
    writer regrole;
begin
    for writer in
        select distinct a.grantee::regrole from pg_attribute as column_ cross join aclexplode(column_.attacl) as a
        where column_.attrelid = '/*schema*/delivery'::regclass and column_.attname = 'job_key' and a.privilege_type = 'INSERT'
          and a.grantee <> 0
    loop
        execute format('grant insert (caused_by) on /*schema*/delivery to %s', writer);
    end loop;
end
$caused$;
