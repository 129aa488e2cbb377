-- rollup_spec: the declaration with which a rollup was installed.
select r.spec from /*schema*/rollup as r where r.name = %(name)s
