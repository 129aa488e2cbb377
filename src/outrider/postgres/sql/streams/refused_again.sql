-- refused_again: the next refused entries of an inbox to be tried again, the oldest first: at most `limit`, and batch_bytes of their
-- data, which the last entry may exceed. Locks them until the transaction ends.
select r.id, r.subscription, r.stream, r.position, r.data, r.message, r.at from /*schema*/stream_refused as r
where r.id in (
    select sized.id
    from (select page.id, sum(page.bytes) over (order by page.id rows between unbounded preceding and 1 preceding) as before
          from (select p.id, octet_length(p.data) as bytes from /*schema*/stream_refused as p
                where p.subscription = %(subscription)s and p.id > %(after)s
                order by p.id limit %(limit)s) as page) as sized
    where sized.before is null or sized.before < /*schema*/batch_bytes())
order by r.id for update
