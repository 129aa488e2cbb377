-- settle_jobs: what became of jobs; back comes what landed. See jobs/functions/settle_jobs.sql.
select delivery, outcome from /*schema*/settle_jobs(
    %(names)s::text[], %(done)s::bigint[], %(tokens)s::bigint[], %(results)s::jsonb[], %(others)s::jsonb, %(worker)s::text)
