-- room: how many more jobs of this type, and with this key of this workspace, may be claimed now. Reads the running jobs.
create or replace function /*schema*/room(p_subscription text, p_key text, p_workspace_id text default null) returns bigint
    language sql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
    select least(
        s.concurrency - (select count(*) from /*schema*/job as d
                         where d.subscription = p_subscription and d.status = 'in_flight' and s.concurrency is not null),
        s.key_concurrency - (select count(*) from /*schema*/job as d
                             where d.subscription = p_subscription and d.job_key = p_key
                               and coalesce(d.workspace_id, '') = coalesce(p_workspace_id, '') and d.status = 'in_flight'
                               and s.key_concurrency is not null),
        2147483647)
    from /*schema*/subscription as s where s.name = p_subscription
$$;
