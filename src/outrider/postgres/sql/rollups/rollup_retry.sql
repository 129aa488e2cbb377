-- rollup_retry: let what was set aside wait again; how many rows.
select /*schema*/rollup_retry(%(name)s, %(by)s, %(reason)s)
