-- forget_workers: delete the row of one worker; without an id, the rows of workers that have not been seen for a day.
-- Returns the deleted workers. Runs as the owner: whoever may delete from a table may also lock it, and every claim reads this one.
create or replace function /*schema*/forget_workers(p_id uuid default null) returns table (id uuid, subscriptions text[])
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    delete from /*schema*/worker as w
    where case when p_id is null then w.seen_at < now() - interval '1 day' else w.id = p_id end
    returning w.id, w.subscriptions;
end
$$;
