-- Repairs: what tests from outside found.
-- breaking: no
-- functions: a9ef9c25dbd21c57

comment on column /*schema*/cursor.cluster is 'log_home() of the log whose transaction ids these are';
