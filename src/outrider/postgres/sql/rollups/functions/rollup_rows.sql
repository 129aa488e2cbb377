-- rollup_rows: the ids of the rows of groups p_first to p_last. p_ids are sorted by group; p_ends has the place of each group's last id.
create or replace function /*schema*/rollup_rows(p_ids bigint[], p_ends integer[], p_first integer, p_last integer) returns bigint[]
    language sql immutable parallel safe
    return p_ids[coalesce(p_ends[p_first - 1], 0) + 1 : p_ends[p_last]];
