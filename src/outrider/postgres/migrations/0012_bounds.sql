-- Bounds: no producer can stop the others.
-- breaking: no
-- functions: cfe6a99b73736b2e

-- Receipts that hold texts say whose they are, so that erase finds them when the job, or the event, is gone.
alter table /*schema*/event_handled
    add column workspace_id text,
    add column job_key      text;
comment on column /*schema*/event_handled.workspace_id is 'whose result and failure_history these are; null where there is neither';
comment on column /*schema*/event_handled.job_key is 'the same, of a job that was enqueued: its key';
