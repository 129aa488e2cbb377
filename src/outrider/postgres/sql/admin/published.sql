-- published: the first log position of each minute of the last hour. An id of version 7 begins with its time in milliseconds, so the
-- index on id finds it; ids of other versions are not looked at. One probe per minute and segment.
select minute.at, (select o.seq from /*schema*/outbox as o
                   where o.id >= (lpad(to_hex((extract(epoch from minute.at) * 1000)::bigint), 12, '0')
                                  || '70008000000000000000')::uuid
                     and o.id < (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
                                 || 'ffffffffffffffffffff')::uuid
                   order by o.id limit 1)
from (select clock_timestamp() - n * interval '1 minute' as at from generate_series(60, 1, -1) as n) as minute
