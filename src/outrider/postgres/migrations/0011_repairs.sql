-- Repairs: what tests from outside found.
-- breaking: no
-- functions: f561b8f94e83c547

comment on column /*schema*/cursor.cluster is 'log_home() of the log whose transaction ids these are';
