-- fire: a schedule moves on, with the jobs of the times that came due. See jobs/functions/fire.sql.
select /*schema*/fire(
    %(name)s::text, %(seen)s::timestamptz, %(to)s::timestamptz, %(times)s::timestamptz[], %(job_type)s::text,
    %(payload)s::jsonb, %(queue)s::text, %(priority)s::int, %(version)s::int, %(source)s::text, %(key)s::text,
    %(workspace_id)s::text, %(generation)s::bigint, %(poke)s::boolean)
