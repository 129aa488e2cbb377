-- progress: store the progress that running jobs report. Each names its lease.
-- Locks:  the jobs, SKIP LOCKED: waiting for one that is being settled, while holding another, could deadlock.
with said as materialized (
    select d.id, p.progress
    from unnest(%(deliveries)s::bigint[], %(tokens)s::bigint[], %(progress)s::text[]) as p (id, token, progress)
    join /*schema*/job as d on d.id = p.id and d.lease_token = p.token and d.status = 'in_flight'
    order by d.id for no key update of d skip locked
)
update /*schema*/job as d set progress = said.progress::jsonb from said where d.id = said.id
