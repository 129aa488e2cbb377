-- fire: advance a schedule from the time that the caller saw to p_to, and enqueue one job for each of p_times.
-- Locks:  the schedule's row, without waiting.
-- Returns false, and does nothing, if another worker has advanced it or holds it, or if it is paused.
create or replace function /*schema*/fire(
    p_name text, p_seen timestamptz, p_to timestamptz, p_times timestamptz[], p_job_type text, p_payload jsonb,
    p_queue text, p_priority integer, p_version integer, p_source text, p_key text, p_workspace_id text,
    p_generation bigint, p_poke boolean
) returns boolean
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform from /*schema*/schedule as s
    where s.name = p_name and s.fired_at = p_seen and s.paused_at is null for update skip locked;
    if not found then
        return false;
    end if;
    update /*schema*/schedule as s
    set fired_at = p_to, enqueued_at = case when p_times = '{}' then s.enqueued_at else clock_timestamp() end
    where s.name = p_name;
    perform /*schema*/enqueue_one(
        p_job_type, p_payload, null, t.at, p_priority, null, 'keep', p_queue, p_key, p_version, p_source, p_workspace_id,
        null, p_generation, p_poke)
    from unnest(p_times) as t (at);
    return true;
end
$$;
