-- promote: where the head of a line has gone, the next in it becomes the head. The caller holds the cursor's lock.
-- Reads:  delivery by line: a look-up or two per line, however long it is.
create or replace function /*schema*/promote(p_subscription text, p_lines text[]) returns void
    language sql volatile
    set search_path = pg_catalog, pg_temp
as $$
    update /*schema*/delivery as d
    set head = true
    from unnest(p_lines) as l (line)
    cross join lateral (
        select f.id from /*schema*/delivery as f
        where f.subscription = p_subscription and f.ordering_key = l.line and f.status = 'pending'
        order by f.head desc, f.seq limit 1) as next
    where d.id = next.id and not d.head
$$;
