-- rollup_faulty_rows: of a group that cannot be emitted, the rows to set aside, and why. These are the rows that fail by
-- themselves, if the others can be emitted without them; else all.
create or replace function /*schema*/rollup_faulty_rows(
    p_rollup /*schema*/rollup, p_ids bigint[], p_threshold integer, out faulty bigint[], out reason text
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    never   constant integer := 2147483647;     -- with this threshold every row becomes an event of its own
    each    constant integer[] := array(select generate_subscripts(p_ids, 1));
    alone   record;
    failing bigint[];
    rest    bigint[];
begin
    faulty := p_ids;
    reason := /*schema*/rollup_fault(p_rollup, p_ids, p_threshold);
    if cardinality(p_ids) = 1 then
        return;
    end if;
    alone := /*schema*/rollup_faulty_groups(p_rollup, p_ids, each, never);
    failing := array(select p_ids[place] from unnest(alone.faulty) as place);
    rest := array(select id from unnest(p_ids) as id where id <> all (failing));
    if failing = '{}' or rest = '{}' or alone.undecided <> '{}' then
        return;
    end if;
    if /*schema*/rollup_fault(p_rollup, rest, p_threshold) is null then
        faulty := failing;
        reason := /*schema*/rollup_fault(p_rollup, failing[1:1], never);
    end if;
end
$$;
