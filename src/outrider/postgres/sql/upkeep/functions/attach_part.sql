-- attach_part: attach a table as the segment of these positions; p_last null = no upper bound. Reads the table once.
-- Locks:  the log, SHARE UPDATE EXCLUSIVE, for which neither publishers nor readers wait; the table itself exclusively.
create or replace function /*schema*/attach_part(p_name text, p_first bigint, p_last bigint) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('alter table /*schema*/outbox attach partition /*schema*/%I for values from (%s) to (%s)', p_name,
                   case p_first when 0 then 'minvalue' else p_first::text end, coalesce((p_last + 1)::text, 'maxvalue'));
    execute format('comment on table /*schema*/%I is null', p_name);
    insert into /*schema*/segment as s (name, first_seq, last_seq) values (p_name, p_first, p_last)
    on conflict (name) do update set first_seq = p_first, last_seq = p_last, detached_at = null;
end
$$;
