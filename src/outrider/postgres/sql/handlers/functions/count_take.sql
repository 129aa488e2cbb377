-- count_take: count a take of a cursor, and excused rollbacks, outside of the transaction, so that a rollback keeps the count.
-- Runs as the owner: whoever could draw from these sequences freely could fake the deaths of workers.
create or replace function /*schema*/count_take(p_cursor bigint, p_takes integer, p_excused integer) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    drawn bigint;
begin
    if (p_takes between 0 and 1 and p_excused between 0 and 1000) is not true then
        raise 'count_take counts one take and up to 1,000 rollbacks at once, not % and %', p_takes, p_excused
            using errcode = 'OR001';
    end if;
    -- PERFORM would start a query.
    for each in 1 .. p_takes loop
        drawn := nextval(to_regclass(format('/*schema*/takes_%s', p_cursor)));
    end loop;
    for each in 1 .. p_excused loop
        drawn := nextval(to_regclass(format('/*schema*/excused_%s', p_cursor)));
    end loop;
end
$$;
