-- inbox_hold: where the streams of an inbox stand; locks them until the transaction ends, so that it reads nothing meanwhile.
select s.name, s.position from /*schema*/stream as s where s.subscription = %(subscription)s order by s.name for update
