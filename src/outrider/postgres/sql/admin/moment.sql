-- moment: what holds for everything: the database's clock, the newest number of the log, since when all is paused. The number
-- from the sequence itself: pg_sequence_last_value says null, as of an empty log, to whoever may not read it.
select clock_timestamp(), (select case when s.is_called then s.last_value else 0 end from /*schema*/outbox_seq as s),
       (select p.updated_at from /*schema*/setting as p where p.name = 'paused' and p.value <> 0)
