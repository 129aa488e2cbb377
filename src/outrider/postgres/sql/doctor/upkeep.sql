-- upkeep: when upkeep last ran, since when it could have, for how many days the log is kept, and which segments are kept longer, with
-- the reason, the oldest first. Reads two small tables.
select (select u.ran_at from /*schema*/upkeep as u where u.task = 'run') as ran_at,
       (select max(m.applied_at) from /*schema*/migration as m where m.version <= 8) as there_since,
       (select s.value from /*schema*/setting as s where s.name = 'retention.log_days') as days,
       array(select s.name from /*schema*/segment as s where s.kept is not null order by s.first_seq) as segments,
       array(select s.kept from /*schema*/segment as s where s.kept is not null order by s.first_seq) as reasons
