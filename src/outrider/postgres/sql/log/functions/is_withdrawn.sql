-- is_withdrawn: whether an operator has withdrawn this event. Not inlined: called only if the log has withdrawals that matter.
create or replace function /*schema*/is_withdrawn(p_seq bigint) returns boolean
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from /*schema*/withdrawal as w where w.seq = p_seq);
end
$$;
