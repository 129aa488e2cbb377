-- payloads: the payloads and trace contexts of these leases, if they are too large for the answer of their claim: see functions/lease.sql.
-- Reads:  the jobs by primary key; for jobs of events the log by seq.
select j.id, /*schema*/as_text(coalesce(j.payload, o.payload)),
       nullif(/*schema*/as_text(coalesce(o.trace_context, j.trace_context)), '')
from /*schema*/job as j
left join lateral (
    select o.payload, o.trace_context from /*schema*/outbox as o where o.seq = j.seq limit 1) as o on j.seq is not null
where j.id = any (%(deliveries)s::bigint[]) and j.lease_token = %(token)s
