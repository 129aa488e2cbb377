-- divert: park the events of a take that must not run now, and return the others in their order.
-- Parked are all events if p_suspicious, else those behind a parked event of their ordering key. Events that are in delivery
-- already are left there and marked as `reached`: the log has been read up to them.
-- The caller is take, which holds the cursor's lock.
-- Reads:  outbox by seq, delivery by seq and by ordering key. Writes: delivery.
create or replace function /*schema*/divert(
    p_cursor /*schema*/cursor, p_ordering text, p_seqs bigint[], p_suspicious boolean
) returns bigint[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    rest bigint[];
begin
    with held as materialized (
        select o.seq, o.id, o.event_type, o.workspace_id, ordered.ordering_key, seen.known
        from /*schema*/outbox as o
        cross join lateral (
            select /*schema*/ordering_key(p_ordering, o.workspace_id, o.aggregate_id) as ordering_key) as ordered
        cross join lateral (
            select exists (select from /*schema*/delivery as d
                           where d.subscription = p_cursor.subscription and d.seq = o.seq) as known) as seen
        where o.seq = any (p_seqs) and o.seq between p_seqs[1] and p_seqs[cardinality(p_seqs)]
          and (p_suspicious or seen.known
               or exists (select from /*schema*/delivery as d
                          where d.subscription = p_cursor.subscription and d.generation = p_cursor.generation
                            and d.status = 'pending' and d.ordering_key = ordered.ordering_key and d.seq < o.seq))
    ),
    passed as (
        update /*schema*/delivery as d set reached = true
        from held where held.known and d.subscription = p_cursor.subscription and d.seq = held.seq and not d.reached
    ),
    parked as (
        insert into /*schema*/delivery (
            subscription, generation, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at,
            suspect, workspace_id)
        select p_cursor.subscription, p_cursor.generation, p_cursor.partition, held.seq, held.id, held.event_type,
               held.ordering_key, 'pending', held.ordering_key is null, true, now(), p_suspicious, held.workspace_id
        from held
        where not held.known
        order by held.seq
    )
    select array(select read.seq from unnest(p_seqs) as read (seq)
                 where (read.seq in (select held.seq from held)) is not true order by read.seq)
    into rest;
    if p_suspicious then
        perform /*schema*/promote(p_cursor.subscription, p_cursor.generation, array(
            select distinct d.ordering_key from /*schema*/delivery as d
            where d.subscription = p_cursor.subscription and d.generation = p_cursor.generation and d.status = 'pending'
              and d.suspect and d.ordering_key is not null));
    end if;
    return rest;
end
$$;
