-- settle: state that every handler of the batch has returned, so that the COMMIT that follows is let through.
-- Raises OR005 if this is not the transaction in which the batch was taken: a handler has ended that one.
create or replace function /*schema*/settle(p_batch bigint) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('outrider.batch', true) is distinct from p_batch::text then
        raise 'a handler ended the transaction of its batch' using errcode = 'OR005';
    end if;
    perform set_config('outrider.settled', p_batch::text, true);
end
$$;
