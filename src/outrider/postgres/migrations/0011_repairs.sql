-- Repairs: what tests from outside found.
-- breaking: no
-- functions: 0d0ea7d2369319bd

alter table /*schema*/schedule
    add column context text check (octet_length(context) between 1 and 63),
    add column ahead   timestamptz;
comment on column /*schema*/schedule.context is 'who fires it; null: whoever registers it first from now on';
comment on column /*schema*/schedule.updated_at is 'since when it has these times';
comment on column /*schema*/schedule.ahead is 'the last time that was fired while the clock was ahead: it has its job';
