-- batch_bytes: how many bytes of payloads one batch may hold, as they are stored; the event that passes it is the last one.
create or replace function /*schema*/batch_bytes() returns bigint
    language sql immutable
    return 4194304;
