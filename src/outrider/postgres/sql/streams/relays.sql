-- relays: the relays, and the event types that each of them wants; null = every type.
select s.name, s.event_types from /*schema*/subscription as s where s.kind = 'relay' order by s.name
