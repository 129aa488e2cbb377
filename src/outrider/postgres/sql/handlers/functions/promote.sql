-- promote: mark the first pending event of each key as the head, and no other. The caller holds the cursor's lock.
-- Reads:  delivery by ordering key, one or two look-ups per key, however many events wait.
create or replace function /*schema*/promote(p_subscription text, p_generation bigint, p_lines text[]) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    line  text;
    first bigint;
begin
    foreach line in array coalesce(p_lines, '{}') loop
        first := (select min(d.seq) from /*schema*/delivery as d
                  where d.subscription = p_subscription and d.generation = p_generation and d.ordering_key = line
                    and d.status = 'pending');
        update /*schema*/delivery as d set head = false
        where d.subscription = p_subscription and d.generation = p_generation and d.ordering_key = line
          and d.status = 'pending' and d.head and d.seq <> first;
        update /*schema*/delivery as d set head = true
        where d.subscription = p_subscription and d.seq = first and not d.head;
    end loop;
end
$$;
