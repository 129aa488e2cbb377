-- moment: what holds for everything: the database's clock, the newest number of the log, since when all is paused.
select clock_timestamp(), coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0),
       (select p.updated_at from /*schema*/setting as p where p.name = 'paused' and p.value <> 0)
