-- settings: all settings with their limits; for those of a rollup, the value that an operator entered, and since when.
select s.name, s.value, s.entered, s.least, s.greatest, s.updated_at from /*schema*/setting as s
where s.name <> 'paused' order by s.name
