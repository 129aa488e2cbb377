-- owed_of: the ids, in the view owed, of what is owed of an event or a job. Running jobs are looked for apart: the index by event has none
-- of them.
create or replace function /*schema*/owed_of(p_id uuid) returns bigint[]
    language sql stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
select array(
    select d.id from /*schema*/delivery as d where d.event_id = p_id
    union all
    select j.id from /*schema*/job as j where j.event_id = p_id and j.lease_token is null
    union all
    select j.id from /*schema*/job as j where j.event_id = p_id and j.status = 'in_flight')
$$;
