-- excuse: the worker rolled a batch back in good order; it was no death. Called right after the ROLLBACK, on its own.
-- p_armed: a suspect that had been counted before it ran, and that did not kill its worker, or did not run at all.
create or replace function /*schema*/excuse(p_cursor bigint default null, p_armed bigint default null) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    if p_cursor is not null then
        perform nextval(format('/*schema*/excused_%s', p_cursor)::regclass);
    end if;
    if p_armed is not null then
        update /*schema*/delivery as d set crashes = d.crashes - 1, run_at = now()
        where d.id = p_armed and d.status = 'pending' and d.suspect and d.crashes > 0;
    end if;
end
$$;
