-- attach_segment: attach a detached segment to the log again, for p_days at least, to look something up or to replay. Audited.
-- No subscription reads it again: every cursor is past it, and the receipts of its events are still there.
-- Locks:  the log, SHARE UPDATE EXCLUSIVE, for which nobody waits. Reads the segment once.
create or replace function /*schema*/attach_segment(
    p_name text, p_days integer default 7, p_by text default null, p_reason text default null
) returns setof /*schema*/upkept
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '5s'
as $$
declare
    this    /*schema*/segment;
    foreign_events boolean;
begin
    perform /*schema*/sees_all(true);
    if (p_days between 1 and 3650) is not true then
        raise 'a segment can be attached again for 1 to 3650 days, not for %', p_days using errcode = 'OR009';
    end if;
    insert into /*schema*/upkeep (task) values ('lock') on conflict do nothing;
    perform from /*schema*/upkeep as u where u.task = 'lock' for update;
    perform /*schema*/note_segments();
    select s.* into this from /*schema*/segment as s where s.name = p_name for update;
    if this.detached_at is null then
        raise 'there is no detached segment %', quote_nullable(p_name)
            using errcode = 'OR009', hint = 'To list them: outrider upkeep segments';
    end if;
    -- A cursor could mistake them for late events of a transaction here with the same id.
    execute format('select exists (select from /*schema*/%I as o where o.tx >= pg_snapshot_xmax(pg_current_snapshot()))', p_name)
    into foreign_events;
    if foreign_events then
        raise 'the segment % holds events of another cluster, whose transactions this one has not reached', quote_nullable(p_name)
            using errcode = 'OR009', hint = 'It can still be read as a table.';
    end if;
    perform /*schema*/attach_part(this.name, this.first_seq, this.last_seq);
    update /*schema*/segment as s set wanted_until = clock_timestamp() + make_interval(days => p_days), kept = null
    where s.name = p_name;
    insert into /*schema*/audit (by, action, details)
    values (/*schema*/signed(p_by), 'attach_segment', jsonb_strip_nulls(
        to_jsonb(this) || jsonb_build_object('reason', left(p_reason, 2000), 'days', p_days)));
    return next ('attached', this.name, this.last_seq, format('%s to %s', this.first_seq, this.last_seq))::/*schema*/upkept;
end
$$;
