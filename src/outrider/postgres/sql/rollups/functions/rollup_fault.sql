-- rollup_fault: the error of emitting these rows, found by a trial that is rolled back; null if there is none.
-- Only errors that the data cause; others are raised.
create or replace function /*schema*/rollup_fault(p_rollup /*schema*/rollup, p_ids bigint[], p_threshold integer)
    returns text
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/rollup_emit(p_rollup, p_ids, p_threshold);
    raise 'undone' using errcode = 'OR008';
exception
    when sqlstate 'OR008' then
        return null;
    when others then
        if /*schema*/rollup_is_outage(sqlstate) then
            raise;
        end if;
        return left(sqlstate || ': ' || sqlerrm, 8000);
end
$$;
