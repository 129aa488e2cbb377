-- Bounds: no producer can stop the others.
-- breaking: no
-- functions: e49fa1e7248a0a20

-- Receipts that hold texts say whose they are, so that erase finds them when the job, or the event, is gone.
alter table /*schema*/event_handled
    add column workspace_id text,
    add column job_key      text;
comment on column /*schema*/event_handled.workspace_id is 'whose result and failure_history these are; null where there is neither';
comment on column /*schema*/event_handled.job_key is 'the same, of a job that was enqueued: its key';

-- Dead letters keep the last frames of the traceback.
alter table /*schema*/delivery add column last_traceback text check (octet_length(last_traceback) <= 16384);
comment on column /*schema*/delivery.last_traceback is 'where last_error was raised: the innermost frames, of a handler or a job';
