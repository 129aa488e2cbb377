-- rollup_groups: the groups that wait in a rollup, the oldest first, of its oldest `most` rows. By the index rollup_pending_waiting:
-- not by equality, because then the planner may read the whole table by its primary key.
select p.workspace_id, p.group_key, count(*), min(p.staged_at), max(p.staged_at)
from (select p.id, p.workspace_id, p.group_key, p.staged_at
      from /*schema*/rollup_pending as p
      where p.rollup >= %(name)s and p.rollup <= %(name)s and p.processed_at is null and p.set_aside_at is null
      order by p.rollup, p.id limit %(most)s) as p
group by p.workspace_id, p.group_key order by min(p.id) limit %(limit)s
