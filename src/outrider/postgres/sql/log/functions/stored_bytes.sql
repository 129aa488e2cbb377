-- stored_bytes: the size of a payload as stored, uncompressed, without printing it. It bounds the batches of readers.
-- The text is at most 32 times as long, or 8 KiB (see bounded). The planner inlines it.
create or replace function /*schema*/stored_bytes(p_value jsonb) returns integer
    language sql stable
    return case when pg_catalog.pg_column_compression(p_value) is null then pg_catalog.pg_column_size(p_value)
                else pg_catalog.pg_column_size(p_value operator(pg_catalog.#>) '{}') end;
