-- as_text: a payload or a trace context as text, as readers get it. Empty, which is no JSON, if it cannot be printed.
-- Only a value that was stored before the log bounded its text (see bounded) can be so long; printing it would fail the query for
-- the whole batch. The planner inlines it. What is stored in 4,000 bytes prints in at most 36 MiB.
create or replace function /*schema*/as_text(p_value jsonb) returns text
    language sql stable
    return case when pg_catalog.pg_column_size(p_value) > 4000 or pg_catalog.pg_column_compression(p_value) is not null
                then /*schema*/as_long_text(p_value) else p_value::pg_catalog.text end;
