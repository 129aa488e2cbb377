-- refuse_unsettled: the deferred trigger of cursor. Only the worker may commit a batch.
-- A batch is settled when it is taken, and its handlers run after that. Whoever commits before settle() gets this error, and the
-- whole batch is rolled back.
create or replace function /*schema*/refuse_unsettled() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('outrider.settled', true) is distinct from new.takes::text then
        raise 'this transaction belongs to the worker: a handler must not commit it'
            using errcode = 'OR005', hint = 'Let the handler return; its effects and its receipt then commit together.';
    end if;
    return null;
end
$$;
