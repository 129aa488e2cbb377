-- event_list: the next matching events of the log below a position, the newest first, with what became of each.
-- The first row says how many events were read, and the lowest position among them.
-- Locks nothing. Reads the log by primary key, at most `scan` events: no index has the key, the type or the time.
with page as materialized (
    select o.seq, o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.workspace_id, o.aggregate_kind, o.aggregate_id,
           o.erased_at
    from /*schema*/outbox as o where o.seq < %(before)s and o.seq >= %(lowest)s order by o.seq desc limit %(scan)s
)
(select min(page.seq), count(*), null::text, null::integer, null::timestamptz, null::text, null::text, null::text, null::text,
        null::timestamptz, null::uuid, null::jsonb
 from page)
union all
(select p.seq, null, p.event_type, p.event_version, p.occurred_at, p.source, p.workspace_id, p.aggregate_kind, p.aggregate_id,
        p.erased_at, p.id,
        (select jsonb_object_agg(e.subscription, e.status) from /*schema*/event_status as e where e.seq = p.seq)
 from page as p
 where (%(key)s::text is null or p.aggregate_id = %(key)s) and (%(event_type)s::text is null or p.event_type = %(event_type)s)
   and (%(workspace_id)s::text is null or p.workspace_id = %(workspace_id)s)
   and (%(since)s::timestamptz is null or p.occurred_at >= %(since)s)
   and (%(until)s::timestamptz is null or p.occurred_at < %(until)s)
 order by p.seq desc limit %(limit)s)
