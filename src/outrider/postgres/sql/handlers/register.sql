-- register a subscription and its cursors. See handlers/functions/register.sql.
select outcome, partitions from /*schema*/register(
    %(name)s::text, %(kind)s::text, %(context)s::text, %(event_types)s::text[], %(partitions)s::int, %(start)s::text,
    %(ordering)s::text)
