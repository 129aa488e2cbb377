-- A column, and a function that reads it and that `take` calls from now on.
-- breaking: no
-- functions: visited

alter table /*schema*/cursor add column visits bigint not null default 0;
