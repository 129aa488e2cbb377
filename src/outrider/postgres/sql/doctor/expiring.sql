-- expiring: the dead letters that upkeep removes within the next `expiring`, by subscription: how many, and when the oldest is due.
-- Reads at most `most` of the oldest, discarded ones among them, by the indexes of their age.
select d.subscription, count(*), min(d.since) + d.kept
from (select d.subscription, d.status, coalesce(d.buried_at, d.created_at) as since, s.kept
      from (select make_interval(days => s.value::integer) as kept
            from /*schema*/setting as s where s.name = 'retention.dead_letter_days') as s
      cross join lateral (
          select d.* from /*schema*/owed as d
          where d.status in ('failed', 'discarded')
            and coalesce(d.buried_at, d.created_at) < now() - s.kept + %(expiring)s::interval
          order by coalesce(d.buried_at, d.created_at) limit %(most)s) as d) as d
where d.status = 'failed'
group by d.subscription, d.kept order by 3, 1
