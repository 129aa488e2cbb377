-- Replay of dead letters; parking finds its cursor by an index.
-- breaking: no
-- functions: 9753d494fd8228b0

create index delivery_of_event on /*schema*/delivery (event_id);
create unique index cursor_id on /*schema*/cursor (id);
