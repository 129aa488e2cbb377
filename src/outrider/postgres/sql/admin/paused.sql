-- paused: whether everything is paused.
select s.value <> 0 from /*schema*/setting as s where s.name = 'paused'
