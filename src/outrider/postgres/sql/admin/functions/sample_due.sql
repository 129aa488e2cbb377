-- sample_due: whether no worker has kept a sample for 55 s. One in the future, by a clock that went back, does not count.
-- Runs as the owner: a heartbeat needs no right on the table.
create or replace function /*schema*/sample_due() returns boolean
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
return not exists (select from /*schema*/sample as s
                   where s.taken_at between clock_timestamp() - interval '55 s' and clock_timestamp());
