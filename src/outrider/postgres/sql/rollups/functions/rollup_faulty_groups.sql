-- rollup_faulty_groups: the groups that cannot be emitted, found by trials that halve what fails. p_ids and p_ends: see rollup_rows.
-- After 200 of them it halves no more. Groups that fail together then are `undecided`: they wait for another tick.
create or replace function /*schema*/rollup_faulty_groups(
    p_rollup /*schema*/rollup, p_ids bigint[], p_ends integer[], p_threshold integer,
    out faulty integer[], out undecided integer[]
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    untried int4range[] := array[int4range(1, cardinality(p_ends), '[]')];  -- the last one is tried next
    low     integer;
    high    integer;
    middle  integer;
begin
    faulty := '{}';
    undecided := '{}';
    while cardinality(untried) > 0 loop
        low := lower(untried[cardinality(untried)]);
        high := upper(untried[cardinality(untried)]) - 1;
        untried := trim_array(untried, 1);
        if /*schema*/rollup_fault(p_rollup, /*schema*/rollup_rows(p_ids, p_ends, low, high), p_threshold) is null then
            continue;
        elsif cardinality(faulty) >= 200 then
            undecided := undecided || array(select generate_series(low, high));
        elsif low = high then
            faulty := faulty || low;
        else
            middle := (low + high) / 2;
            untried := untried || array[int4range(middle + 1, high, '[]'), int4range(low, middle, '[]')];
        end if;
    end loop;
end
$$;
