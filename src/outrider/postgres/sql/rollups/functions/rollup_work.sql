-- rollup_work: a tick, run as the owner. Called by rollup_tick, which has made constraints immediate.
-- Not here: before Postgres 18, deferred triggers of the caller would fire as the owner.
create or replace function /*schema*/rollup_work(p_name text, p_flush boolean) returns jsonb
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan  -- a plan made for ten rows is very slow for a hundred thousand
as $$
declare
    began    timestamptz := clock_timestamp();
    rollup   /*schema*/rollup;
    settings record;
    allowed  bigint := (select s.value from /*schema*/setting as s where s.name = 'payload_max_bytes');
    ids      bigint[];
    ends     integer[];
    wrong    bigint[];
    reasons  text[];
    most     constant integer := 200000;  -- rows per tick; the rest waits for the next
    sifted   record;
    figures  record;
    aside    bigint := 0;
    run      /*schema*/rollup_log;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'rollup_tick needs a READ COMMITTED transaction, this one is %', current_setting('transaction_isolation')
            using errcode = 'OR007';
    end if;
    select r.* into rollup from /*schema*/rollup as r where r.name = p_name for no key update skip locked;
    if not found then
        if exists (select from /*schema*/rollup as r where r.name = p_name) then
            return jsonb_build_object('result', 'skipped', 'reason', 'lock_held');
        end if;
        raise 'there is no rollup %', quote_nullable(p_name)
            using errcode = 'OR007', hint = 'outrider rollup install makes one.';
    end if;
    settings := /*schema*/rollup_settings(p_name);
    run.result := 'idle';
    run.groups_emitted := 0;
    run.pieces_emitted := 0;
    run.conflicts_skipped := 0;
    run.rows_marked := 0;
    run.error_count := cardinality(settings.complaints);
    run.error_text := nullif(array_to_string(settings.complaints, '; '), '');
    select count(*) into run.pending_pre from /*schema*/rollup_pending as p
    where p.rollup = p_name and p.processed_at is null and p.set_aside_at is null;

    begin
        -- Ids sorted by group, and where each group ends. Malformed rows are found without a trial.
        with waiting as (
            select w.*, min(w.id) over of_group as leader, max(w.staged_at) over of_group as newest,
                   min(w.staged_at) over of_group as oldest
            from /*schema*/rollup_pending as w
            where w.rollup = p_name and w.processed_at is null and w.set_aside_at is null
            window of_group as (
                partition by w.workspace_id, w.group_key, case when w.group_key is null then w.id end)
        ),
        due as materialized (
            select p.id, p.leader, case
                       when jsonb_typeof(p.carried) <> 'object' then 'what it carries is no JSON object'
                       when said.bytes > allowed or said.bytes = 0 then
                           format('it carries %s bytes, the limit is %s',
                                  coalesce(nullif(said.bytes, 0)::text, 'more than 134217728'), allowed)
                       when octet_length(p.group_key) not between 1 and 512 then
                           format('its key has %s bytes, 1 to 512 are allowed', octet_length(p.group_key))
                       when octet_length(p.workspace_id) not between 1 and 255 then
                           format('its workspace has %s bytes, 1 to 255 are allowed', octet_length(p.workspace_id))
                       when p.staged_at not between '0001-01-02 00:00Z' and '9999-12-30 23:59:59.999999Z' then
                           format('it was staged at %s, which no event can say', p.staged_at)
                   end as reason
            from waiting as p
            cross join lateral (select octet_length(/*schema*/as_text(p.carried)) as bytes offset 0) as said
            where p_flush or p.newest <= began - settings.debounce or p.oldest <= began - settings.max_wait
               or p.newest > began + interval '5 minutes'        -- the clock was set back
        ),
        fit as materialized (
            select d.id, row_number() over (order by d.leader, d.id) as place,
                   d.id = max(d.id) over (partition by d.leader) as last
            from due as d where d.reason is null
        )
        select (select array_agg(f.id order by f.place) from fit as f),
               (select array_agg(f.place order by f.place) from fit as f where f.last),
               array_agg(d.id) filter (where d.reason is not null), array_agg(d.reason) filter (where d.reason is not null)
        into ids, ends, wrong, reasons
        from due as d;
        update /*schema*/rollup_pending as p set set_aside_at = clock_timestamp(), error = w.reason
        from unnest(wrong, reasons) as w (id, reason) where p.id = w.id;
        get diagnostics aside = row_count;
        if cardinality(ids) > most then
            ends := array(select e from unnest(ends) with ordinality as n (e, place) where e <= most or place = 1 order by e);
            ids := ids[1 : ends[cardinality(ends)]];
        end if;
        if ids is not null then
            begin
                figures := /*schema*/rollup_emit(rollup, ids, settings.threshold);
            exception when others then
                if /*schema*/rollup_is_outage(sqlstate) then
                    raise;
                end if;
                sifted := /*schema*/rollup_sift(rollup, ids, ends, settings.threshold);
                aside := aside + sifted.aside;
                figures := /*schema*/rollup_emit(rollup, sifted.good, settings.threshold);
            end;
            run.groups_emitted := figures.groups_emitted;
            run.pieces_emitted := figures.pieces_emitted;
            run.conflicts_skipped := figures.conflicts_skipped;
            run.rows_marked := figures.rows_marked;
        end if;
        if ids is not null or aside > 0 then
            run.result := 'processed';
        end if;
    exception when others then
        run.result := 'error';
        run.error_count := run.error_count + 1;
        run.error_text := left(concat_ws('; ', run.error_text, sqlstate || ': ' || sqlerrm), 8000);
        run.groups_emitted := 0;
        run.pieces_emitted := 0;
        run.conflicts_skipped := 0;
        run.rows_marked := 0;
        aside := 0;
    end;

    if aside > 0 then
        select concat_ws('; ', run.error_text, format('%s rows were set aside, the newest: %s', aside, (
            select p.error from /*schema*/rollup_pending as p
            where p.rollup = p_name and p.processed_at is null and p.set_aside_at is not null
            order by p.set_aside_at desc, p.id desc limit 1)))
        into run.error_text;
        run.error_count := run.error_count + 1;
    end if;
    select count(*) into run.pending_post from /*schema*/rollup_pending as p
    where p.rollup = p_name and p.processed_at is null and p.set_aside_at is null;
    update /*schema*/rollup as r set ticked_at = clock_timestamp() where r.name = p_name;
    delete from /*schema*/rollup_pending as p where p.id in (
        select old.id from /*schema*/rollup_pending as old
        where old.rollup = p_name and old.processed_at < now() - interval '7 days' limit 10000);
    delete from /*schema*/rollup_log as l where l.id in (
        select old.id from /*schema*/rollup_log as old
        where old.rollup = p_name and old.run_at < now() - interval '30 days' limit 1000);
    insert into /*schema*/rollup_log (
        rollup, result, run_at, pending_pre, pending_post, groups_emitted, pieces_emitted, conflicts_skipped, rows_marked,
        set_aside, duration_ms, error_count, error_text)
    values (
        p_name, run.result, began, run.pending_pre, run.pending_post, run.groups_emitted, run.pieces_emitted,
        run.conflicts_skipped, run.rows_marked, aside, extract(epoch from clock_timestamp() - began) * 1000,
        run.error_count, run.error_text)
    returning * into run;
    return to_jsonb(run) - 'id';
end
$$;
