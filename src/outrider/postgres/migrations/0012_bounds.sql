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

-- Reports: a heartbeat carries what its worker is doing and what troubles it.
alter table /*schema*/worker
    add column report      jsonb check (length(report::text) <= 8192),
    add column reported_at timestamptz,
    add column backend     integer;
comment on column /*schema*/worker.report is 'what runs longest there, and its troubles; seconds count back from reported_at';
comment on column /*schema*/worker.reported_at is
    'later than seen_at: written by the watchdog of a worker whose event loop is held';
comment on column /*schema*/worker.backend is
    'the process of the server that has the session of the heartbeat; null behind a pooler';
