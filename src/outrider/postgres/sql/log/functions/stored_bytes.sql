-- stored_bytes: how long a payload is as it is stored, uncompressed: by this the batches of readers are bounded, without
-- printing it. Its text is at most 32 times as long, or 8 KiB (see bounded). A plain expression, as as_text.
create or replace function /*schema*/stored_bytes(p_value jsonb) returns integer
    language sql stable
    return case when pg_catalog.pg_column_compression(p_value) is null then pg_catalog.pg_column_size(p_value)
                else pg_catalog.pg_column_size(p_value operator(pg_catalog.#>) '{}') end;
