-- Repairs: what tests from outside found.
-- breaking: no
-- functions: 95253974bb29e295

drop function if exists /*schema*/admit(text, text, text);

alter table /*schema*/delivery
    add column closed        boolean not null default false,
    add column superseded_at timestamptz;
comment on column /*schema*/delivery.closed is
    'it is due and waits for transactions that keep it: an enqueue with its unique key creates another job';
comment on column /*schema*/delivery.superseded_at is 'it is running, and a newer job with its unique key is done';
comment on column /*schema*/delivery.waiting is 'its key had no room when a claim looked at it';

drop index /*schema*/job_unique;
create unique index job_unique on /*schema*/delivery (subscription, coalesce(workspace_id, ''), unique_key)
    where status = 'pending' and unique_key is not null and seq is null and not closed;
create index job_unique_running on /*schema*/delivery (subscription, coalesce(workspace_id, ''), unique_key)
    where status = 'in_flight' and unique_key is not null and seq is null;

-- Events with one idempotency key have one job, pending or running. Where there are two already, the second goes by its event's id.
update /*schema*/delivery as d set unique_key = null
where d.status in ('pending', 'in_flight') and d.seq is not null and d.unique_key is not null and exists (
    select from /*schema*/delivery as other
    where other.subscription = d.subscription and coalesce(other.workspace_id, '') = coalesce(d.workspace_id, '')
      and other.unique_key = d.unique_key and other.seq is not null and other.status in ('pending', 'in_flight')
      and other.id < d.id);
create unique index job_once on /*schema*/delivery (subscription, coalesce(workspace_id, ''), unique_key)
    where status in ('pending', 'in_flight') and unique_key is not null and seq is not null;

-- A worker may serve some queues only, and jobs of its generation.
drop index /*schema*/job_waiting;
create index job_waiting on /*schema*/delivery
    (subscription, coalesce(workspace_id, ''), job_key, queue, generation, priority, run_at, id) where waiting;

comment on column /*schema*/cursor.cluster is 'log_home() of the log whose transaction ids these are';

alter table /*schema*/schedule
    add column context text check (octet_length(context) between 1 and 63),
    add column ahead   timestamptz;
comment on column /*schema*/schedule.context is 'who fires it; null: whoever registers it first from now on';
comment on column /*schema*/schedule.updated_at is 'since when it has these times';
comment on column /*schema*/schedule.ahead is 'the last time that was fired while the clock was ahead: it has its job';
