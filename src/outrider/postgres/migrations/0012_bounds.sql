-- Bounds: no producer can stop the others.
-- breaking: no
-- functions: 95253974bb29e295

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
