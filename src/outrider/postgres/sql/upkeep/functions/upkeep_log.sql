-- upkeep_log: detach a segment whose events are all older than retention.log_days, if nobody needs it; drop segments that were
-- detached retention.log_grace_days ago. One segment is detached per call: `detached` means, call again.
--
-- Before, it ends canaries that are older than 10 minutes: their doctor was killed, and nobody reads their cursors.
-- With a segment its events' copies in the audit are deleted; the entries stay.
-- The age of a segment counts from when its last position was handed out, by the database's clock. occurred_at does not count,
-- because imported events have any time.
-- Locks:  first the log and the segment, ACCESS EXCLUSIVE; then it looks, then it detaches. Under this lock no open or prepared
--         transaction has published, so every event is committed and visible. Publishers and takes wait no longer than
--         upkeep.lock_timeout_ms behind it.
create or replace function /*schema*/upkeep_log(p_dry boolean default false) returns setof /*schema*/upkept
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '200ms'
as $$
declare
    days    integer := /*schema*/setting_value('retention.log_days');
    grace   integer := /*schema*/setting_value('retention.log_grace_days');
    this    /*schema*/segment;
    reasons text;
    told    /*schema*/upkept;
    dropped bigint;
    jobs    bigint;
begin
    if not /*schema*/upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::/*schema*/upkept;
        return;
    end if;
    perform /*schema*/note_segments();
    if not p_dry then
        perform /*schema*/canary_end(old.name, null)
        from (select s.name from /*schema*/subscription as s join /*schema*/cursor as c on c.subscription = s.name
              where s.name ~ '^outrider[.]canary_[0-9a-f]{8}$' and s.created_at < now() - interval '10 minutes'
              for update of s, c skip locked) as old;
    end if;

    for this in select s.* from /*schema*/segment as s
                where s.detached_at < clock_timestamp() - make_interval(days => grace) order by s.first_seq loop
        told := ('dropped', this.name, this.last_seq, format('%s to %s', this.first_seq, this.last_seq));
        if not p_dry then
            begin
                execute format($copies$
                    update /*schema*/audit as a
                    set details = a.details - 'payload' - 'before' - 'owed' - 'receipt' - 'error' || '{"dropped": true}'
                    where a.details ?| array['payload', 'before', 'owed', 'receipt', 'error']
                      and exists (select from /*schema*/%I as o where o.id = a.event_id)$copies$, this.name);
                execute format('drop table /*schema*/%I', this.name);
                delete from /*schema*/segment as s where s.name = this.name;
                insert into /*schema*/audit (by, action, details)
                values ('upkeep', 'drop_segment', to_jsonb(this));
            exception
                when lock_not_available or deadlock_detected then
                    told := ('busy', this.name, 0, 'somebody reads it');
                when dependent_objects_still_exist then
                    told := ('kept', this.name, 0, sqlerrm);
                    update /*schema*/segment as s set kept = sqlerrm where s.name = this.name;
            end;
        end if;
        return next told;
    end loop;

    for this in select s.* from /*schema*/segment as s
                where s.detached_at is null and s.closed_at < clock_timestamp() - make_interval(days => days)
                  and coalesce(s.wanted_until, '-infinity') < clock_timestamp()
                order by s.first_seq loop
        reasons := (select string_agg(why, '; ') from (select why from /*schema*/debts(this) as why limit 20) as first);
        if reasons is not null then
            update /*schema*/segment as s set kept = reasons where s.name = this.name and s.kept is distinct from reasons;
            return next ('kept', this.name, 0, reasons)::/*schema*/upkept;
            continue;
        end if;
        told := ('detached', this.name, this.last_seq, format('%s to %s', this.first_seq, this.last_seq));
        if not p_dry then
            begin
                lock table only /*schema*/outbox in access exclusive mode;
                execute format('lock table only /*schema*/%I in access exclusive mode', this.name);
                reasons := (select string_agg(why, '; ') from (select why from /*schema*/debts(this) as why limit 20) as first);
                if reasons is null then
                    execute format('alter table /*schema*/outbox detach partition /*schema*/%I', this.name);
                    execute format('comment on table /*schema*/%I is ''a detached segment of the log''', this.name);
                    -- Nobody waits for what was discarded, and without its event it cannot be replayed.
                    delete from /*schema*/delivery as d using /*schema*/subscription as s
                    where d.subscription = s.name and d.seq between this.first_seq and this.last_seq and d.status = 'discarded';
                    get diagnostics dropped = row_count;
                    delete from /*schema*/job as j using /*schema*/subscription as s
                    where j.subscription = s.name and j.seq between this.first_seq and this.last_seq and j.status = 'discarded';
                    get diagnostics jobs = row_count;
                    insert into /*schema*/audit (by, action, details) values (
                        'upkeep', 'detach_segment', to_jsonb(this) || jsonb_build_object('discarded', dropped + jobs));
                else
                    told := ('kept', this.name, 0, reasons);
                end if;
                update /*schema*/segment as s
                set kept = reasons, detached_at = case when reasons is null then clock_timestamp() end, wanted_until = null
                where s.name = this.name;
            exception when lock_not_available or deadlock_detected then
                told := ('busy', this.name, 0, /*schema*/log_holders());
            end;
            -- The log is locked until the transaction ends: return at once.
            return next told;
            return;
        end if;
        return next told;
    end loop;
    update /*schema*/segment as s set kept = null
    where s.kept is not null and s.detached_at is null
      and s.closed_at >= clock_timestamp() - make_interval(days => days);
end
$$;
