-- jobs_page: of the next p_scan jobs after p_after, by id, those that match all given filters.
-- p_key, p_workspace_id: of the job; of a job of events, else of its event.
-- p_states: of running, pending, failed and cancelled, which includes superseded and discarded.
-- p_payload: fields by their path, with their text, such as {"order_id": "7", "customer.country": "DE"}. Only a text, a number, true
--         and false are compared; a job of events has the payload of its event.
-- p_classes: payloads of events of other content classes do not match.
-- Reads:  p_scan jobs by primary key; by position the events of those that came from events, if key, tenant or payload is asked for.
-- Returns place: the last id that was read, null = there was none; how many were read; the ids that match, and the state of each.
create or replace function /*schema*/jobs_page(
    p_type text default null, p_queue text default null, p_key text default null, p_workspace_id text default null,
    p_states text[] default null, p_payload jsonb default null, p_after bigint default 0, p_until bigint default null,
    p_scan integer default 1000, p_classes text[] default null,
    out place bigint, out searched integer, out jobs bigint[], out states text[]
)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_sort = off
    set jit = off
as $$
begin
    perform /*schema*/sees_all();
    with read as materialized (
        select j.id, j.seq, j.subscription, j.queue, j.job_key, j.workspace_id, j.payload,
               case j.status when 'in_flight' then 'running' when 'discarded' then 'cancelled' else j.status end as state
        from /*schema*/job as j
        where j.id > p_after and j.id <= coalesce(p_until, 9223372036854775807) order by j.id limit p_scan
    ),
    found as materialized (
        select read.id, read.state from read
        left join lateral (
            select o.aggregate_id, o.workspace_id, o.payload, o.content_class from /*schema*/outbox as o
            where o.seq = read.seq and num_nonnulls(p_key, p_workspace_id, p_payload) > 0 limit 1) as o on true
        where (p_type is null or read.subscription = p_type)
          and (p_queue is null or read.queue = p_queue)
          and (p_states is null or read.state = any (p_states))
          and (p_key is null or coalesce(read.job_key, o.aggregate_id) = p_key)
          and (p_workspace_id is null or coalesce(read.workspace_id, o.workspace_id) = p_workspace_id)
          and (p_payload is null or not exists (
              select from jsonb_each_text(p_payload) as wanted
              cross join lateral (
                  select case when read.seq is null or p_classes is null or o.content_class = any (p_classes)
                              then coalesce(read.payload, o.payload) #> string_to_array(wanted.key, '.') end as value) as field
              where jsonb_typeof(field.value) in ('string', 'number', 'boolean') is not true
                 or field.value #>> '{}' <> wanted.value))
    )
    select (select max(read.id) from read), (select count(*) from read),
           coalesce(array_agg(found.id order by found.id), '{}'), coalesce(array_agg(found.state order by found.id), '{}')
    into place, searched, jobs, states
    from found;
end
$$;
