-- generation_channel: where the workers of a generation listen. Publishers may add a class to it. A plain expression, which the
-- planner puts in place of the call.
create or replace function /*schema*/generation_channel(p_generation bigint) returns text
    language sql immutable
    return case p_generation when 0 then 'outbox_default' else 'outbox_gen_' || p_generation::pg_catalog.text end;
