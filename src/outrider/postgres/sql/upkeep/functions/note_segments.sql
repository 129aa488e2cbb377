-- note_segments: update the table `segment` from the catalogue, with when the log was first seen to reach each segment and to be past
-- it. A segment that somebody detached by hand is forgotten here: it is theirs, and never dropped.
-- Locks:  only its own rows; the caller holds the lock of upkeep.
create or replace function /*schema*/note_segments() returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    drawn bigint := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);
begin
    insert into /*schema*/segment as s (name, first_seq, last_seq)
    select c.relname, coalesce(bound[1]::bigint, 0), bound[2]::bigint - 1
    from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
    cross join regexp_match(pg_get_expr(c.relpartbound, c.oid),
                            'FROM [(](?:''?([0-9]+)''?|MINVALUE)[)] TO [(](?:''?([0-9]+)''?|MAXVALUE)[)]') as bound
    where i.inhparent = '/*schema*/outbox'::regclass
    on conflict (name) do update
    set first_seq = excluded.first_seq, last_seq = excluded.last_seq, detached_at = null
    where (s.first_seq, s.last_seq, s.detached_at) is distinct from (excluded.first_seq, excluded.last_seq, null);

    delete from /*schema*/segment as s
    where case when s.detached_at is null
               then not exists (select from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
                                where i.inhparent = '/*schema*/outbox'::regclass and c.relname = s.name)
               else to_regclass(format('/*schema*/%I', s.name)) is null end;

    update /*schema*/segment as s
    set begun_at = coalesce(s.begun_at, clock_timestamp()),
        closed_at = case when s.last_seq <= drawn then coalesce(s.closed_at, clock_timestamp()) end
    where greatest(s.first_seq, 1) <= drawn
      and (s.begun_at is null or (s.closed_at is null) <> (s.last_seq > drawn or s.last_seq is null));
end
$$;
