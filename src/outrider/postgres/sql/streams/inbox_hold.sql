-- inbox_hold: lock the streams of an inbox until the transaction ends, so that it ingests nothing, and return their positions.
select s.name, s.position from /*schema*/stream as s where s.subscription = %(subscription)s order by s.name for update
