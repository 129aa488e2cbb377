-- upkeep_segments: create segments ahead of the log if less than half of them are left; and end the current segment if it is old.
-- It is ended segments.days after it was begun, so that a quiet log can be shortened too; or earlier, if it will soon be too large to
-- be ended and will not be full by then. The next segment is as large as the log is expected to fill in that time.
--
-- Locks:  creating segments needs none. To put them before the last one, which has no upper bound, or to end the current one, the
--         log is locked ACCESS EXCLUSIVE for some milliseconds. Publishers and takes wait no longer than upkeep.lock_timeout_ms: if
--         the lock is not free by then, the outcome is `busy`, and it is tried another time.
--         Under this lock no open transaction has published, so the next position is known.
-- Reads:  to end a segment, Postgres reads its rows under that lock, so only small ones are ended. Larger ones fill up by
--         themselves, except for the last: see docs/upkeep.md.
create or replace function /*schema*/upkeep_segments(p_dry boolean default false) returns setof /*schema*/upkept
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '200ms'
    set default_tablespace = ''
    set default_table_access_method = 'heap'
as $$
declare
    most     constant bigint := 64 * 1024 * 1024;
    size     bigint := /*schema*/setting_value('segments.size');
    wanted   bigint := /*schema*/setting_value('segments.ahead');
    drawn    bigint;
    ahead    bigint;
    tail     /*schema*/segment;
    this     /*schema*/segment;
    starts   bigint;
    ends     bigint;
    days     interval := make_interval(days => /*schema*/setting_value('segments.days')::integer);
    fills    bigint;  -- positions that the log uses in that time, at the pace of the current segment
    held     bigint;
    early    boolean;
    made     text[];
    told     /*schema*/upkept;
begin
    if not /*schema*/upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::/*schema*/upkept;
        return;
    end if;
    perform /*schema*/note_segments();
    drawn := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);
    select * into tail from /*schema*/segment as s where s.detached_at is null and s.last_seq is null;
    ahead := (select count(*) from /*schema*/segment as s
              where s.detached_at is null and s.last_seq is not null and s.first_seq > drawn);

    if ahead * 2 < wanted or tail.name is null then
        if tail.name is not null and drawn >= tail.first_seq
           and pg_relation_size(format('/*schema*/%I', tail.name)) > most then
            told := ('kept', tail.name, 0, 'the last segment is written to and too large to be ended without holding up publishers');
        elsif p_dry then
            told := ('make', tail.name, wanted - ahead, null);
        else
            begin
                if tail.name is null then
                    starts := coalesce((select max(s.last_seq) + 1 from /*schema*/segment as s), 0);
                elsif drawn < tail.first_seq then
                    starts := tail.first_seq;
                    made := array(select /*schema*/make_segment(starts + n * size) from generate_series(0, wanted - ahead - 1) as n);
                end if;
                lock table only /*schema*/outbox in access exclusive mode;
                if made is not null and coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0) >= starts then
                    raise lock_not_available using message = 'the log has just reached its last segment';
                end if;
                if tail.name is not null then
                    execute format('alter table /*schema*/outbox detach partition /*schema*/%I', tail.name);
                end if;
                if made is null and tail.name is not null then
                    starts := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0) + 1;
                    execute format('alter table /*schema*/%I rename to %I', tail.name, 'outbox_from_' || tail.first_seq);
                    update /*schema*/segment as s set name = 'outbox_from_' || tail.first_seq, closed_at = clock_timestamp()
                    where s.name = tail.name;
                    perform /*schema*/attach_part('outbox_from_' || tail.first_seq, tail.first_seq, starts - 1);
                end if;
                if made is null then
                    -- Only one, because the log is locked; the next call creates the others before it locks.
                    made := array[/*schema*/make_segment(starts)];
                    execute format('alter table /*schema*/%I rename to outbox_tail', /*schema*/make_segment(starts + size));
                    tail.name := 'outbox_tail';
                end if;
                perform /*schema*/attach_part(made[n + 1], starts + n * size, starts + (n + 1) * size - 1)
                from generate_series(0, cardinality(made) - 1) as n;
                perform /*schema*/attach_part(tail.name, starts + cardinality(made) * size, null);
                told := ('made', tail.name, cardinality(made), format('%s to %s', starts, starts + cardinality(made) * size - 1));
            exception when lock_not_available or deadlock_detected then
                told := ('busy', tail.name, 0, /*schema*/log_holders());
            end;
        end if;
        return next told;
    end if;

    select * into this from /*schema*/segment as s
    where s.detached_at is null and greatest(s.first_seq, 1) <= drawn and s.last_seq > drawn;
    if not found then
        return;
    end if;
    fills := greatest(10000, (drawn - this.first_seq) * extract(epoch from days)
                             / greatest(1, extract(epoch from clock_timestamp() - this.begun_at)));
    held := pg_relation_size(format('/*schema*/%I', this.name));
    early := this.begun_at >= clock_timestamp() - days;
    if held > most or this.begun_at is null or early and (held <= most * 3 / 4 or this.first_seq + fills >= this.last_seq) then
        return;
    end if;
    if p_dry then
        return next ('cut', this.name, drawn, format('begun %s', this.begun_at))::/*schema*/upkept;
        return;
    end if;
    begin
        lock table only /*schema*/outbox in access exclusive mode;
        drawn := pg_sequence_last_value('/*schema*/outbox_seq'::regclass);
        if drawn >= this.last_seq then
            return;
        end if;
        execute format('alter table /*schema*/outbox detach partition /*schema*/%I', this.name);
        perform /*schema*/attach_part(this.name, this.first_seq, drawn);
        ends := case when early then least(drawn + fills, this.last_seq) else this.last_seq end;
        perform /*schema*/attach_part(/*schema*/make_segment(drawn + 1), drawn + 1, ends);
        if ends < this.last_seq then
            perform /*schema*/attach_part(/*schema*/make_segment(ends + 1), ends + 1, this.last_seq);
        end if;
        update /*schema*/segment as s set closed_at = clock_timestamp() where s.name = this.name;
        told := ('cut', this.name, drawn, format('begun %s', this.begun_at));
    exception when lock_not_available or deadlock_detected then
        told := ('busy', this.name, 0, /*schema*/log_holders());
    end;
    return next told;
end
$$;
