-- rollup_verify: whether a rollup is installed as it was made.
select v.topic, v.passed, v.value, v.detail, v.blocks from /*schema*/rollup_verify(%(name)s) as v
