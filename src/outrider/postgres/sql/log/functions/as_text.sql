-- as_text: a payload or a trace context as readers get it. Empty, which no JSON is: it cannot be read, since it was stored before
-- the log bounded its text (see bounded). Reading it would end the session's query, and that of its whole batch.
-- A plain expression, which the planner puts in place of the call; what is stored in 4,000 bytes prints in 36 MiB at most.
create or replace function /*schema*/as_text(p_value jsonb) returns text
    language sql stable
    return case when pg_catalog.pg_column_size(p_value) > 4000 or pg_catalog.pg_column_compression(p_value) is not null
                then /*schema*/as_long_text(p_value) else p_value::pg_catalog.text end;
