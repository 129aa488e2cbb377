-- count_deaths: how many takes of a locked cursor were rolled back without an excuse since the last one that committed.
-- The sequences takes_<id> and excused_<id> count outside of transactions. Nobody else draws from the first while we hold the
-- cursor. An excuse may still be on its way, since it needs no lock (park): where there are deaths to suspect somebody for, wait
-- up to 0.2 s for it.
-- Returns batch: the number of this take. excused: the excuses so far, with p_excused, which the caller could not report.
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
