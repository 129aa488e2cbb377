-- rollup_tick: emit the groups of a rollup that are due, and return what happened: skipped (another tick holds the lock), idle,
-- processed, error. A group is due if its newest row is older than the debounce time, or its oldest than the longest wait; with
-- p_flush all are.
-- A row that commits late is seen by a later tick: nothing depends on the order of ids or times.
-- An error undoes the emission and is kept in rollup_log. Rows that cannot become events are set aside, and the rest goes on.
-- Locks:  the rollup's row, until the transaction ends, without waiting.
create or replace function /*schema*/rollup_tick(p_name text, p_flush boolean default false) returns jsonb
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    set constraints all immediate;  -- the caller's deferred checks fail here, as its own error; those of the emission run at once
    return /*schema*/rollup_work(p_name, p_flush);
end
$$;
