-- children: the events that the handlers and jobs of an event published, the oldest first; at most a hundred.
-- Locks nothing. Reads the log by primary key: `most` events after the event, and `most` after each of the times at which it was
-- handled, which may be much later; each of them once, and `total` in all. The time in the ids finds that position; ids of other
-- versions than 7 are not looked at.
with place as (
    select place.after, lead(place.after) over (order by place.after) as next
    from (select %(seq)s::bigint as after
          union
          select greatest(near.seq - 1, %(seq)s)
          from unnest(%(handled)s::timestamptz[]) as handled (at)
          cross join lateral (
              select o.seq from /*schema*/outbox as o
              where o.id >= (lpad(to_hex((extract(epoch from handled.at) * 1000)::bigint - 2000), 12, '0')
                             || '70008000000000000000')::uuid
                and o.id < (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
                            || 'ffffffffffffffffffff')::uuid
              order by o.id limit 1) as near) as place
),
read as (
    select o.seq, o.id, o.event_type, o.occurred_at, o.caused_by
    from place
    cross join lateral (
        select o.seq, o.id, o.event_type, o.occurred_at, o.caused_by
        from /*schema*/outbox as o
        where o.seq > place.after and o.seq <= coalesce(place.next, 9223372036854775807) order by o.seq limit %(most)s) as o
    limit %(total)s
)
select read.seq, read.id, read.event_type, read.occurred_at from read where read.caused_by = %(event_id)s
order by read.seq limit 100
