-- rollup_tick: emit what is due of a rollup, and say what came of it: skipped (another tick holds the lock), idle, processed,
-- error. A group is due when its newest row is older than the debounce time, or its oldest than the longest wait; with
-- p_flush all of them are.
-- A row that commits late is simply seen later: nothing here rests on an order of ids or times.
-- Locks:  the rollup's row, until the end of the transaction; waits for nobody.
-- An error undoes the emission and is kept in rollup_log; rows that cannot become events are set aside, and the rest goes on.
create or replace function /*schema*/rollup_tick(p_name text, p_flush boolean default false) returns jsonb
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    set constraints all immediate;  -- what the caller still owes is the caller's error; what is emitted is judged at once
    return /*schema*/rollup_work(p_name, p_flush);
end
$$;
