-- rollup_culprits: find the groups that cannot be emitted, by halving what fails, trial by trial.
-- p_ids are sorted by group; p_ends holds for each group the place of its last row. After 200 culprits it halves no more: what fails
-- then as a whole is `unsifted`, and waits for another tick.
create or replace function /*schema*/rollup_culprits(
    p_rollup /*schema*/rollup, p_ids bigint[], p_ends integer[], p_threshold integer,
    out culprits integer[], out unsifted integer[]
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    lows   integer[] := array[1];
    highs  integer[] := array[cardinality(p_ends)];
    low    integer;
    high   integer;
    middle integer;
begin
    culprits := '{}';
    unsifted := '{}';
    while cardinality(lows) > 0 loop
        low := lows[cardinality(lows)];
        high := highs[cardinality(highs)];
        lows := trim_array(lows, 1);
        highs := trim_array(highs, 1);
        if cardinality(culprits) >= 200 then
            if /*schema*/rollup_fault(
                   p_rollup, p_ids[coalesce(p_ends[low - 1], 0) + 1 : p_ends[high]], p_threshold) is not null then
                unsifted := unsifted || array(select generate_series(low, high));
            end if;
        elsif /*schema*/rollup_fault(
                  p_rollup, p_ids[coalesce(p_ends[low - 1], 0) + 1 : p_ends[high]], p_threshold) is not null then
            if low = high then
                culprits := culprits || low;
            else
                middle := (low + high) / 2;
                lows := lows || array[middle + 1, low];
                highs := highs || array[high, middle];
            end if;
        end if;
    end loop;
end
$$;
