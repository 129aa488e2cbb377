-- has_workers: whether a live worker of that generation serves this subscription and queue. Reads the few rows of workers.
create or replace function /*schema*/has_workers(p_subscription text, p_generation bigint, p_queue text) returns boolean
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from /*schema*/worker as w
                   where w.generation = p_generation and p_subscription = any (w.subscriptions)
                     and p_subscription <> all (w.unable) and not w.stopping
                     and (w.queues is null or p_queue = any (w.queues))
                     and /*schema*/is_live(w.seen_at));
end
$$;
