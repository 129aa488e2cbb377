-- rollup_runs: the newest runs of a rollup that found something to do, of its last `most` runs. By the index rollup_log_newest.
select l.run_at, l.result, l.pending_pre, l.pending_post, l.groups_emitted, l.pieces_emitted, l.rows_marked, l.set_aside,
       l.duration_ms, l.error_text
from (select l.* from /*schema*/rollup_log as l where l.rollup = %(name)s order by l.run_at desc limit %(most)s) as l
where l.result <> 'idle' order by l.run_at desc limit %(limit)s
