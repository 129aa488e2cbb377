-- Replay of dead letters.
-- breaking: no
-- functions: 9d972bf02bd6f477

create index delivery_of_event on /*schema*/delivery (event_id);
