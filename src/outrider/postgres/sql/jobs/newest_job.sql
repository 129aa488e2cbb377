-- newest_job: the greatest id of a job; 0 if there is none. By primary key.
select coalesce(max(j.id), 0) from /*schema*/job as j
