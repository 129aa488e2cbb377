-- settings: all of them, with their limits; what an operator entered for a rollup, and since when.
select s.name, s.value, s.entered, s.least, s.greatest, s.updated_at from /*schema*/setting as s
where s.name <> 'paused' order by s.name
