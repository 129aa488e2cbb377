-- Replay of dead letters; parking finds its cursor by an index.
-- breaking: no
-- functions: b6ce7bcdcbf83ee7

create index delivery_of_event on /*schema*/delivery (event_id);
create unique index cursor_id on /*schema*/cursor (id);
