-- uncommitted_jobs: the pending jobs that the caller's own open transaction enqueued or replaced, in the columns of a take.
-- For tests. A row has the id of the subtransaction that wrote it. A row that is visible and whose id is still in progress is our
-- own, whatever the savepoints; no row below our first id is. Reads the whole table. Locks nothing.
select null as outcome, null as partition, null as batch, null as due_in, null as cursor, null as delivery,
       null as conceded,
       1 as attempt, null::bigint, d.event_id, d.subscription, d.event_version, d.created_at, d.source, null::text,
       'internal', /*schema*/generation_channel(d.generation), d.generation,
       d.workspace_id, null::text, d.job_key, null::bigint, d.payload::text, d.event_id::text, d.trace_context::text,
       null::text
from /*schema*/job as d
cross join (select pg_current_xact_id_if_assigned()::text::numeric as own) as tx
cross join lateral (select d.xmin::text::numeric - mod(tx.own, 4294967296) as ahead) as number
where d.seq is null and d.status = 'pending'
  and case when age(d.xmin) <= 0
           then pg_xact_status((tx.own + ahead + case when ahead < 0 then 4294967296 else 0 end)::text::xid8)
           end = 'in progress'
order by d.id
