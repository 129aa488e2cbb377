-- stream_standings: the position of each stream of a relay or an inbox, and how many entries were refused, up to `most`.
select s.subscription, s.name, s.position, s.events, s.moved_at,
       (select count(*) from (select from /*schema*/stream_refused as r
                              where r.subscription = s.subscription and r.stream = s.name limit %(most)s) as r) as refused
from /*schema*/stream as s order by s.subscription, s.name
