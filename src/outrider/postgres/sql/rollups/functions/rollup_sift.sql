-- rollup_sift: of groups that cannot be emitted together, set the rows at fault aside, and return those that can be emitted.
-- p_ids and p_ends: see rollup_rows. If there are more than ten groups and none can be emitted, the rows are not to blame: an error.
create or replace function /*schema*/rollup_sift(
    p_rollup /*schema*/rollup, p_ids bigint[], p_ends integer[], p_threshold integer,
    out good bigint[], out aside bigint
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan
as $$
declare
    groups   constant record := /*schema*/rollup_faulty_groups(p_rollup, p_ids, p_ends, p_threshold);
    place    integer;
    fault    record;
    reason   text;
    left_out bigint[] := '{}';
begin
    foreach place in array groups.faulty loop
        fault := /*schema*/rollup_faulty_rows(p_rollup, /*schema*/rollup_rows(p_ids, p_ends, place, place), p_threshold);
        update /*schema*/rollup_pending as p set set_aside_at = clock_timestamp(), error = fault.reason
        where p.id = any (fault.faulty);
        left_out := left_out || fault.faulty;
        reason := coalesce(reason, fault.reason);
    end loop;
    aside := cardinality(left_out);
    foreach place in array groups.undecided loop
        left_out := left_out || /*schema*/rollup_rows(p_ids, p_ends, place, place);
    end loop;
    good := array(select id from unnest(p_ids) as id where id <> all (left_out));
    if good = '{}' and cardinality(p_ends) > 10 then
        -- Some of the undecided groups may be good: try twenty, from all over.
        for place in select distinct cardinality(p_ends) - n * cardinality(p_ends) / 20 from generate_series(0, 19) as n loop
            if /*schema*/rollup_fault(p_rollup, /*schema*/rollup_rows(p_ids, p_ends, place, place), p_threshold) is null then
                return;
            end if;
        end loop;
        raise 'nothing could be emitted, so the rows are not to blame: %', reason using errcode = 'OR007';
    end if;
end
$$;
