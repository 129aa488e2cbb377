-- The table of applied migrations, created before the first of them, under the migration lock.
create table if not exists /*schema*/migration (
    version    integer     primary key,
    name       text        not null,
    breaking   boolean     not null,
    applied_at timestamptz not null default now(),
    applied_by text        not null
);
