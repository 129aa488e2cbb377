-- canaries: which of these canaries are registered. By primary key.
select s.name from /*schema*/subscription as s where s.name = any (%(names)s)
