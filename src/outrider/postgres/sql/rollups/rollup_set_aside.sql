-- rollup_set_aside: the rows of a rollup that could not become events, the last to be staged first, at most `most`, and why. By the
-- index rollup_pending_aside: not by equality, because then the planner may read the whole table by its primary key.
select p.id, p.workspace_id, p.group_key, p.staged_at, p.set_aside_at, p.error
from /*schema*/rollup_pending as p
where p.rollup >= %(name)s and p.rollup <= %(name)s and p.processed_at is null and p.set_aside_at is not null
order by p.rollup desc, p.id desc limit %(most)s
