-- note_adoption: audit that an operator let a relay continue after the end of a stream, in the transaction that does it.
create or replace function /*schema*/note_adoption(
    p_subscription text, p_stream text, p_before text, p_position text, p_by text default null, p_reason text default null
) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform /*schema*/relay_only(p_subscription);
    perform /*schema*/note('adopt_stream', p_by, p_reason, p_subscription, null, jsonb_build_object(
        'stream', left(p_stream, 255), 'before', left(p_before, 255), 'position', left(p_position, 255)));
end
$$;
