-- narrow: a subscription no longer wants these event types. It keeps at least one.
update /*schema*/subscription as s
set event_types = array(select kept.event_type from unnest(s.event_types) as kept (event_type)
                        where not kept.event_type = any (%(types)s::text[]) order by 1)
where s.name = %(name)s
