-- keep_sample: the sample of this minute, over the one of an hour ago. Runs as the owner: whoever may update a table may also lock it.
create or replace function /*schema*/keep_sample(
    p_seq bigint, p_waiting double precision, p_owed bigint, p_dead bigint, p_handled bigint,
    p_failed bigint
) returns void
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    insert into /*schema*/sample (minute, seq, waiting, owed, dead, handled, failed)
    values (extract(minute from clock_timestamp()), p_seq, p_waiting, p_owed, p_dead, p_handled,
            p_failed)
    on conflict (minute) do update
    set taken_at = excluded.taken_at, seq = excluded.seq, waiting = excluded.waiting, owed = excluded.owed, dead = excluded.dead,
        handled = excluded.handled, failed = excluded.failed;
$$;
