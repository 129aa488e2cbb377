-- registered_job: the options of a job type as the table has them. By primary key.
select lease, timeout, concurrency, key_concurrency, keep from /*schema*/subscription where name = %(name)s
