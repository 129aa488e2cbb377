-- moment: the database's time, the newest log position, and since when everything is paused. The position is read from the sequence:
-- pg_sequence_last_value returns null, as for an empty log, to a role that may not read it.
select clock_timestamp(), (select case when s.is_called then s.last_value else 0 end from /*schema*/outbox_seq as s),
       (select p.updated_at from /*schema*/setting as p where p.name = 'paused' and p.value <> 0)
