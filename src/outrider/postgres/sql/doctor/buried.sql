-- buried: how many dead letters each subscription got within the last `lately`, and the newest error.
-- Reads at most `most` of the newest, discarded ones among them, by the indexes of their age.
select d.subscription, count(*) as letters, (array_agg(d.code order by d.since desc))[1] as code,
       (array_agg(d.message order by d.since desc))[1] as message
from (select d.subscription, d.status, coalesce(d.buried_at, d.created_at) as since, d.last_error_code as code,
             left(d.last_error, 200) as message
      from /*schema*/owed as d
      where d.status in ('failed', 'discarded')
        and coalesce(d.buried_at, d.created_at) > clock_timestamp() - %(lately)s::interval
      order by coalesce(d.buried_at, d.created_at) desc limit %(most)s) as d
where d.status = 'failed'
group by d.subscription order by 2 desc
