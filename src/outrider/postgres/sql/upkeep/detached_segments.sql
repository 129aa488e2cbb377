-- detached_segments: tables that were segments of the log and can be attached again.
select s.name from /*schema*/segment as s where s.detached_at is not null order by s.first_seq
