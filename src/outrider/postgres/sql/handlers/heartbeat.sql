-- heartbeat: insert or refresh the row of a worker, and delete the rows of workers that have not been seen for a day.
-- Returns whether a sample is due.
insert into /*schema*/worker (
    id, host, pid, version, generation, subscriptions, listening, stopping, unable, schema_version,
    queues, report, reported_at, backend, strict)
values (%(id)s, %(host)s, %(pid)s, %(version)s, %(generation)s, %(subscriptions)s, %(listening)s, %(stopping)s,
        %(unable)s::text[], %(schema_version)s, %(queues)s::text[], %(report)s::jsonb, now(),
        case when not %(pooled)s then pg_backend_pid() end, %(strict)s)
on conflict (id) do update
set seen_at = now(), listening = excluded.listening, stopping = excluded.stopping, subscriptions = excluded.subscriptions,
    unable = excluded.unable, report = excluded.report, reported_at = excluded.reported_at, backend = excluded.backend
returning (select count(*) from /*schema*/forget_workers()),
          /*schema*/sample_due()
