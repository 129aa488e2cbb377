-- upkeep_receipts: delete receipts that are older than retention.receipt_days + retention.receipt_grace_days and whose events are
-- in no segment, attached or detached. One step reads some pages of the table. Receipts of enqueued jobs (seq 0) go by their age
-- alone. If a job type sets a longer time (keep), its receipts stay as long as that.
-- A subscription that has not read, or not handled, events older than the grace keeps all of its receipts: it may still meet an
-- event with the key of one of them.
--
-- No index serves this, because every receipt would pay for it: it walks the table by its pages. After a round it rests until the
-- oldest receipt that it met is due by the current settings, at least an hour.
-- Locks:  the receipts that it deletes. A session that writes the same receipt waits until the transaction ends.
-- Returns `more`: call again.
create or replace function /*schema*/upkeep_receipts(p_dry boolean default false, p_pages integer default 100)
    returns setof /*schema*/upkept
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set lock_timeout = '200ms'
    set jit = off
as $$
declare
    kept   interval := make_interval(days => (/*schema*/setting_value('retention.receipt_days')
                                              + /*schema*/setting_value('retention.receipt_grace_days'))::integer);
    before timestamptz := clock_timestamp() - kept;
    grace  interval := make_interval(days => /*schema*/setting_value('retention.receipt_grace_days')::integer);
    below  bigint;
    until  bigint;
    behind text[];
    place  /*schema*/upkeep;
    pages  bigint := pg_relation_size('/*schema*/event_handled') / current_setting('block_size')::bigint;
    gone   bigint;
    left_at timestamptz;
begin
    if (p_pages between 1 and 10000) is not true then
        raise 'a step of upkeep is 1 to 10000, not %', p_pages using errcode = 'OR009';
    end if;
    if not /*schema*/upkeep_lock() then
        return next ('busy', 'upkeep', 0, 'another session is at it')::/*schema*/upkept;
        return;
    end if;
    insert into /*schema*/upkeep (task) values ('receipts') on conflict do nothing;
    select u.* into place from /*schema*/upkeep as u where u.task = 'receipts' for update;
    below := coalesce((select min(s.first_seq) from /*schema*/segment as s), 0);
    place.page := greatest(place.page, 0);
    if place.page = 0 then
        if greatest(place.next_at, place.oldest + kept) > clock_timestamp() then
            return;
        end if;
        place.oldest := null;
    end if;
    -- Positions that may have been handed out before the grace began.
    until := coalesce((select min(s.first_seq) - 1 from /*schema*/segment as s where s.begun_at > clock_timestamp() - grace),
                      pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);
    behind := array(
        select s.name from /*schema*/subscription as s
        where exists (select from /*schema*/cursor as c where c.subscription = s.name and /*schema*/owes(c, 1, until))
           or exists (select from /*schema*/owed as d
                      where d.subscription = s.name and d.seq <= until and d.status in ('pending', 'in_flight'))
        order by s.name);
    if p_dry then
        gone := (select count(*) from /*schema*/event_handled as h
                 where h.ctid >= format('(%s,0)', place.page)::tid and h.ctid < format('(%s,0)', place.page + p_pages)::tid
                   and h.handled_at < before and (h.seq = 0 or h.seq < below and h.handler_name <> all (behind))
                   and not exists (select from /*schema*/subscription as s
                                   where s.name = h.handler_name and h.handled_at + s.keep > clock_timestamp()));
    else
        delete from /*schema*/event_handled as h
        where h.ctid >= format('(%s,0)', place.page)::tid and h.ctid < format('(%s,0)', place.page + p_pages)::tid
          and h.handled_at < before and (h.seq = 0 or h.seq < below and h.handler_name <> all (behind))
          and not exists (select from /*schema*/subscription as s
                          where s.name = h.handler_name and h.handled_at + s.keep > clock_timestamp());
        get diagnostics gone = row_count;
        -- A receipt that is kept longer counts as younger.
        left_at := (select min(h.handled_at + greatest(s.keep - kept, interval '0')) from /*schema*/event_handled as h
                   left join /*schema*/subscription as s on s.name = h.handler_name
                   where h.ctid >= format('(%s,0)', place.page)::tid
                     and h.ctid < format('(%s,0)', place.page + p_pages)::tid);
        if place.page + p_pages < pages then
            update /*schema*/upkeep as u
            set page = place.page + p_pages, oldest = least(place.oldest, left_at), next_at = null,
                ran_at = clock_timestamp()
            where u.task = 'receipts';
            return next ('more', 'receipts', gone, format('page %s of %s', place.page + p_pages, pages))::/*schema*/upkept;
            return;
        end if;
        update /*schema*/upkeep as u
        set page = 0, oldest = least(place.oldest, left_at), ran_at = clock_timestamp(),
            next_at = clock_timestamp() + interval '1 hour'
        where u.task = 'receipts';
    end if;
    if exists (select from /*schema*/event_handled as h
               where h.ctid >= format('(%s,0)', place.page)::tid and h.ctid < format('(%s,0)', place.page + p_pages)::tid
                 and h.handled_at < before and h.seq < below and h.handler_name = any (behind)) then
        return next ('kept', 'receipts', 0, format('of %s, which has not handled what is older than %s days',
                     array_to_string(behind[:5], ', ') || case when cardinality(behind) > 5 then ' and others' else '' end,
                     extract(day from grace)))::/*schema*/upkept;
    end if;
    if gone > 0 then
        return next ('expired', 'receipts', gone, null)::/*schema*/upkept;
    end if;
end
$$;
