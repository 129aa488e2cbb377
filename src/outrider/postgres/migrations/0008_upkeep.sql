-- Upkeep: the segments of the log and how long each is kept, what else goes when it is old, settings of autovacuum.
-- breaking: no
-- functions: e66e011f335863a5

-- One row per segment: those of the log, and those that were detached and can be attached again until they are dropped.
create table /*schema*/segment (
    name         text        primary key,
    first_seq    bigint      not null,
    last_seq     bigint      check (last_seq >= first_seq),
    made_at      timestamptz not null default clock_timestamp(),
    begun_at     timestamptz,
    closed_at    timestamptz,
    detached_at  timestamptz,
    wanted_until timestamptz,
    kept         text
);

comment on column /*schema*/segment.first_seq is '0 = it has no lower bound: the first of the log';
comment on column /*schema*/segment.last_seq is 'null = it has no upper bound: the last of the log';
comment on column /*schema*/segment.begun_at is 'when the log was seen to have reached it';
comment on column /*schema*/segment.closed_at is 'when the log was seen to be past it: everything in it was published before';
comment on column /*schema*/segment.detached_at is 'since then it is a table of its own';
comment on column /*schema*/segment.wanted_until is 'it was attached again: it stays so long';
comment on column /*schema*/segment.kept is 'why it is still there although its time is over';

insert into /*schema*/segment (name, first_seq, last_seq, begun_at, closed_at)
select part.name, part.first_seq, part.last_seq,
       case when greatest(part.first_seq, 1) <= part.drawn then clock_timestamp() end,
       case when part.last_seq <= part.drawn then clock_timestamp() end
from (select c.relname as name, coalesce(bound[1]::bigint, 0) as first_seq, bound[2]::bigint - 1 as last_seq,
             coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0) as drawn
      from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
      cross join regexp_match(pg_get_expr(c.relpartbound, c.oid),
                              'FROM \((?:''?(\d+)''?|MINVALUE)\) TO \((?:''?(\d+)''?|MAXVALUE)\)') as bound
      where i.inhparent = '/*schema*/outbox'::regclass) as part;

-- How far each task of upkeep is.
create table /*schema*/upkeep (
    task     text        primary key,
    ran_at   timestamptz not null default clock_timestamp(),
    page     bigint      not null default 0,
    oldest   timestamptz,
    next_at  timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

comment on column /*schema*/upkeep.page is 'of a task that walks over a table: where it goes on';
comment on column /*schema*/upkeep.oldest is 'the oldest row that it has met and left, in this round';
comment on column /*schema*/upkeep.next_at is 'there is nothing to do for it before';

-- What upkeep did, or would do.
create type /*schema*/upkept as (action text, subject text, number bigint, detail text);

insert into /*schema*/setting (name, value, least, greatest) values
    ('retention.log_days', 45, 1, 36500),
    ('retention.log_grace_days', 7, 0, 3650),
    ('retention.receipt_days', 60, 2, 73000),
    ('retention.receipt_grace_days', 7, 0, 3650),
    ('retention.dead_letter_days', 45, 1, 36500),
    ('retention.audit_days', 400, 90, 73000),
    ('segments.ahead', 16, 2, 100),
    ('segments.size', 1000000, 1000, 1000000000),
    ('segments.days', 7, 1, 3650),
    ('upkeep.lock_timeout_ms', 200, 10, 5000);

-- Whoever replays an event whose receipt is gone handles it twice: so receipts stay longer than all that can be replayed.
-- At the end of the transaction, so that several can be changed together.
create function /*schema*/refuse_retention() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    log      bigint := (select s.value from /*schema*/setting as s where s.name = 'retention.log_days');
    grace    bigint := (select s.value from /*schema*/setting as s where s.name = 'retention.log_grace_days');
    letters  bigint := (select s.value from /*schema*/setting as s where s.name = 'retention.dead_letter_days');
    receipts bigint := (select s.value from /*schema*/setting as s where s.name = 'retention.receipt_days');
begin
    if (log + grace < receipts) is not true then
        raise 'receipts must outlive the log: retention.log_days + retention.log_grace_days = %, retention.receipt_days = %',
            coalesce((log + grace)::text, 'unset'), coalesce(receipts::text, 'unset')
            using errcode = 'OR009', hint = 'Raise retention.receipt_days first, or in the same transaction.';
    end if;
    if (letters < receipts) is not true then
        raise 'receipts must outlive dead letters: retention.dead_letter_days = %, retention.receipt_days = %',
            coalesce(letters::text, 'unset'), coalesce(receipts::text, 'unset')
            using errcode = 'OR009', hint = 'Raise retention.receipt_days first, or in the same transaction.';
    end if;
    return null;
end
$$;
create constraint trigger refuse_retention after insert or update or delete on /*schema*/setting
    deferrable initially deferred
    for each row execute function /*schema*/refuse_retention();

-- Only dead letters are in it: what is handled well never touches it.
create index delivery_dead_since on /*schema*/delivery ((coalesce(buried_at, created_at)))
    where status in ('failed', 'discarded');

-- Few rows, updated with every batch: vacuum comes when there are some dead ones, however large the share.
alter table /*schema*/cursor set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
alter table /*schema*/stream set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
alter table /*schema*/worker set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- A queue: rows come, change and go. Its indexes are what claims read, so dead rows must not gather.
alter table /*schema*/delivery set (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05);
-- Written once, and never changed until they go: frozen soon, in small steps, instead of all at once when they are old.
alter table /*schema*/event_handled set (
    autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.02, autovacuum_freeze_min_age = 0);
do $frozen$
declare
    part text;
begin
    for part in select s.name from /*schema*/segment as s loop
        execute format('alter table /*schema*/%I set (autovacuum_vacuum_insert_scale_factor = 0.05, '
                       'autovacuum_vacuum_insert_threshold = 10000, autovacuum_freeze_min_age = 0)', part);
    end loop;
end
$frozen$;
