-- enqueue_job: one job without a unique key, on the caller's connection and in the caller's transaction. Locks nothing, and reads
-- nothing: it needs the right to insert, and no other. Only the columns that have a value travel. It notifies by itself.
insert into /*schema*/job (event_id, /*columns*/)
values (%(id)s::text::uuid, /*values*/)
returning case when %(notify)s::boolean then /*schema*/notify(%(wake_channel)s::text, %(job_type)s::text) is null end
