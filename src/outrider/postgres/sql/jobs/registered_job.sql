-- registered_job: the limits of a job type as the table has them. By primary key.
select lease, timeout, concurrency, key_concurrency from /*schema*/subscription where name = %(name)s
