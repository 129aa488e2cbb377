-- route: the next events of a job's subscription become jobs. See jobs/functions/route.sql.
select outcome, routed from /*schema*/route(
    %(subscription)s::text, %(limit)s::int, %(scan)s::int, %(knows)s::text[], %(queue)s::text, %(priority)s::int)
