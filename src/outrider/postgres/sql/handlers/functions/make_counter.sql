-- make_counter: the trigger of cursor, which gives each cursor its two sequences and drops them with it.
-- Takes are counted outside the transaction (count_take), so that a worker that dies in its batch leaves a trace; and so are
-- rollbacks in good order, so that they are not taken for deaths. Everybody may read the sequences. Only count_take draws from them,
-- because whoever may draw could make deaths.
create or replace function /*schema*/make_counter() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'INSERT' then
        execute format('create sequence if not exists /*schema*/takes_%s', new.id);
        execute format('create sequence if not exists /*schema*/excused_%s', new.id);
        execute format('grant select on sequence /*schema*/takes_%1$s, /*schema*/excused_%1$s to public', new.id);
    else
        execute format('drop sequence if exists /*schema*/takes_%1$s, /*schema*/excused_%1$s', old.id);
    end if;
    return null;
end
$$;
