-- tenant_owed: how many of the events at these positions somebody has still to handle.
select count(distinct e.seq) from /*schema*/event_status as e
where e.seq = any (%(places)s::bigint[]) and e.status in ('pending', 'in_flight', 'failed')
