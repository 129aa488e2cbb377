-- count_deaths: count the takes of a locked cursor that were rolled back without an excuse since the last commit.
-- The sequences takes_<id> and excused_<id> count outside of transactions. Nobody else draws from the first while we hold the
-- cursor. An excuse needs no lock (park), so it may come late: if there are 3 to 5 deaths, wait up to 0.2 s for it.
-- Returns batch: the number of this take. excused: the excuses so far, with p_excused, which the caller could not report.
--         deaths: the result.
create or replace function /*schema*/count_deaths(
    p_cursor /*schema*/cursor, p_excused integer, out batch bigint, out excused bigint, out deaths bigint
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    batch := 1 + coalesce(pg_sequence_last_value(to_regclass(format('/*schema*/takes_%s', p_cursor.id))), 0);
    for look in 0 .. 10 loop
        excused := p_excused + coalesce(pg_sequence_last_value(to_regclass(format('/*schema*/excused_%s', p_cursor.id))), 0);
        deaths := batch - 1 - p_cursor.takes - (excused - p_cursor.excused);
        exit when deaths < 3 or deaths > 5 or look = 10;
        perform pg_sleep(0.02);
    end loop;
end
$$;
