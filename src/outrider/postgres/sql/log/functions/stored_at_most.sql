-- stored_at_most: a limit of stored_bytes that costs nothing, as it need not unpack the payload: no compression of Postgres makes
-- anything smaller than 1/256. The planner inlines it.
create or replace function /*schema*/stored_at_most(p_value jsonb) returns bigint
    language sql stable
    return case when pg_catalog.pg_column_compression(p_value) is null then 1 else 256 end
           * pg_catalog.pg_column_size(p_value)::bigint;
