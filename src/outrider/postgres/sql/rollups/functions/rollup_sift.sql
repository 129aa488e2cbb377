-- rollup_sift: of rows that cannot be emitted together, set aside the faulty ones and return the others.
-- The arguments are those of rollup_culprits. Of a faulty group, only the rows that fail by themselves are set aside, if the others
-- can be emitted without them. If there were more than ten groups and none can be emitted, the rows are not to blame: an error.
create or replace function /*schema*/rollup_sift(
    p_rollup /*schema*/rollup, p_ids bigint[], p_ends integer[], p_threshold integer,
    out good bigint[], out aside bigint
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan
as $$
declare
    never   constant integer := 2147483647;     -- with this threshold every row becomes an event of its own
    found   record := /*schema*/rollup_culprits(p_rollup, p_ids, p_ends, p_threshold);
    culprit integer;
    ids     bigint[];
    rows    bigint[];
    alone   record;
    fault   text;
    first   text;
    bad     bigint[] := '{}';
    spot    integer;
begin
    aside := 0;
    foreach culprit in array found.culprits loop
        ids := p_ids[coalesce(p_ends[culprit - 1], 0) + 1 : p_ends[culprit]];
        fault := /*schema*/rollup_fault(p_rollup, ids, p_threshold);
        first := coalesce(first, fault);
        rows := ids;
        if cardinality(ids) > 1 then
            alone := /*schema*/rollup_culprits(p_rollup, ids, array(select generate_subscripts(ids, 1)), never);
            if cardinality(alone.culprits) between 1 and cardinality(ids) - 1 and alone.unsifted = '{}' then
                rows := array(select ids[place] from unnest(alone.culprits) as place);
                fault := /*schema*/rollup_fault(p_rollup, rows[1:1], never);
                if /*schema*/rollup_fault(
                       p_rollup, array(select kept from unnest(ids) as kept where kept <> all (rows)), p_threshold)
                   is not null then
                    rows := ids;
                end if;
            end if;
        end if;
        update /*schema*/rollup_pending as p set set_aside_at = clock_timestamp(), error = fault where p.id = any (rows);
        aside := aside + cardinality(rows);
        bad := bad || rows;
    end loop;
    foreach culprit in array found.unsifted loop
        bad := bad || p_ids[coalesce(p_ends[culprit - 1], 0) + 1 : p_ends[culprit]];
    end loop;
    good := array(select kept from unnest(p_ids) as kept where kept <> all (bad));
    if good = '{}' and cardinality(p_ends) > 10 then
        -- Groups that were not tried may be good: try a few, from all over.
        for spot in select distinct (cardinality(p_ends) - n * cardinality(p_ends) / 20) from generate_series(0, 19) as n loop
            if /*schema*/rollup_fault(p_rollup, p_ids[coalesce(p_ends[spot - 1], 0) + 1 : p_ends[spot]], p_threshold) is null then
                return;
            end if;
        end loop;
        raise 'nothing could be emitted, so the rows are not to blame: %', first using errcode = 'OR007';
    end if;
end
$$;
