-- rollup_preflight: what stands for and against installing it.
select p.topic, p.passed, p.value, p.detail, p.blocks from /*schema*/rollup_preflight(%(spec)s::jsonb) as p
