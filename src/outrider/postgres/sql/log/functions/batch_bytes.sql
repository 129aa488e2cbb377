-- batch_bytes: how many bytes of payloads, as stored, one batch may hold. The event that exceeds it is the last of the batch.
create or replace function /*schema*/batch_bytes() returns bigint
    language sql immutable
    return 4194304;
