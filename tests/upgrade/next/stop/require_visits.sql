-- What neither code can do with the other's schema.
-- breaking: stop
-- functions: -

alter table /*schema*/job add column visits bigint not null default 0;
