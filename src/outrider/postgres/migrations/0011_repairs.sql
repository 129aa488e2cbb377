-- Repairs: what tests from outside found.
-- breaking: no
-- functions: 6bbd4054d701e6ef

alter table /*schema*/schedule add column context text check (octet_length(context) between 1 and 63);
comment on column /*schema*/schedule.context is 'who fires it; null: whoever registers it first from now on';
