-- generation_channel: the channel on which the workers of a generation listen. Publishers may append a class.
-- The planner inlines it.
create or replace function /*schema*/generation_channel(p_generation bigint) returns text
    language sql immutable
    return case p_generation when 0 then 'outbox_default' else 'outbox_gen_' || p_generation::pg_catalog.text end;
