-- rollup_set_aside: the newest rows of a rollup that could not become events, at most `most`, and why.
select p.id, p.workspace_id, p.group_key, p.staged_at, p.set_aside_at, p.error
from /*schema*/rollup_pending as p
where p.rollup = %(name)s and p.processed_at is null and p.set_aside_at is not null
order by p.set_aside_at desc, p.id desc limit %(most)s
