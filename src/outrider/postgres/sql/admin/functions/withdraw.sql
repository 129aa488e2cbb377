-- withdraw: keep an event from all subscriptions that have not handled it yet, now and later. The log is not changed.
-- Its deliveries and its jobs are deleted, and what waited behind them goes on. Audited with the outcomes, which event_status reads
-- there, and with what was deleted.
-- Locks:  the subscriptions that it concerns, so that they get no new cursors; then all their cursors, waiting for the batches in
--         progress. A subscription that is being registered is waited for too, or sees the withdrawal.
-- Returns one row per subscription that it concerns: withdrawn, or delivered (too late); without an event one row, not_found.
create or replace function /*schema*/withdraw(p_event_id uuid, p_by text default null, p_reason text default null)
    returns table (subscription text, outcome text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set jit = off
as $$
#variable_conflict use_column
declare
    seqs      bigint[] := array(select o.seq from /*schema*/outbox as o where o.id = p_event_id);
    concerned text[];
    held      text[] := '{}';
    outcomes  jsonb;
    gone      /*schema*/delivery;
    job       /*schema*/job;
    owed      jsonb := '[]';
    who       text := /*schema*/signed(p_by);
    why       text := left(p_reason, 2000);
begin
    perform /*schema*/sees_all(true);
    if seqs = '{}' then
        outcome := 'not_found';
        return next;
        return;
    end if;
    loop
        concerned := array(select distinct e.subscription from /*schema*/event_status as e where e.event_id = p_event_id);
        exit when concerned <@ held;
        held := held || concerned;
        perform from /*schema*/subscription as s where s.name = any (concerned) order by s.name for no key update;
        perform from /*schema*/cursor as c where c.subscription = any (concerned)
        order by c.subscription, c.generation, c.partition for update;
    end loop;
    outcomes := coalesce((
        select jsonb_object_agg(each.subscription, each.outcome)
        from (select e.subscription, max(case e.status when 'delivered' then 'delivered' else 'withdrawn' end) as outcome
              from /*schema*/event_status as e
              where e.event_id = p_event_id and e.subscription = any (concerned)
              group by e.subscription) as each), '{}');

    insert into /*schema*/withdrawal (seq, event_id, withdrawn_by, reason)
    select each.seq, p_event_id, who, why from unnest(seqs) as each (seq)
    on conflict do nothing;
    for gone in
        delete from /*schema*/delivery as d where d.subscription = any (concerned) and d.seq = any (seqs) returning d.*
    loop
        owed := owed || to_jsonb(gone);
        perform /*schema*/promote(gone.subscription, gone.generation, array[gone.ordering_key]);
        perform /*schema*/notify(/*schema*/generation_channel(gone.generation), gone.event_type);
    end loop;
    for job in
        delete from /*schema*/job as j where j.subscription = any (concerned) and j.seq = any (seqs) returning j.*
    loop
        owed := owed || to_jsonb(job);
        if job.job_key is not null then
            perform /*schema*/wake_jobs(array[job.subscription]);
        end if;
        perform /*schema*/notify(/*schema*/generation_channel(job.generation), job.subscription);
    end loop;
    perform /*schema*/note('withdraw', p_by, p_reason, null, p_event_id, jsonb_strip_nulls(jsonb_build_object(
        'outcomes', outcomes, 'owed', nullif(owed, '[]'))));
    return query select told.key, told.value from jsonb_each_text(outcomes) as told order by told.key;
end
$$;
