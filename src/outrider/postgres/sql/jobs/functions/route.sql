-- route: take the next events of a job's subscription and make jobs of them, in its own transaction (make_jobs).
-- An event that another transaction holds up is put into delivery, and tried again every second.
-- Returns the outcome of the take, the number of new jobs, and if the outcome is idle, the seconds until the next such event.
create or replace function /*schema*/route(
    p_subscription text, p_limit integer, p_scan integer, p_knows text[], p_queue text, p_priority integer,
    out outcome text, out routed bigint, out due_in double precision
)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set row_security = on
    set jit = off
as $$
#variable_conflict use_column
declare
    place integer;
    due   bigint[];
    seqs  bigint[];
    kept  bigint[];
begin
    perform /*schema*/sees_all();
    select max(t.outcome) filter (where t.seq is null), max(t.partition), max(t.due_in),
           coalesce(array_agg(t.seq order by t.seq) filter (where t.seq is not null), '{}')
    into outcome, place, due_in, seqs
    from /*schema*/take(p_subscription, null, p_limit, p_scan, 0, p_knows) as t;
    routed := 0;
    if outcome not in ('more', 'done') then  -- the cursor is not locked
        return;
    end if;
    -- Here, and not with the lock_timeout of make_jobs, it waits for whoever has locked the whole table, like CREATE INDEX.
    lock table /*schema*/job in row exclusive mode;
    due := array(
        select d.seq from /*schema*/delivery as d
        where d.subscription = p_subscription and d.generation = 0 and d.partition = place and d.status = 'pending'
          and d.head and d.reached and d.run_at <= now()
        order by d.run_at, d.seq limit 100 for update skip locked);
    due := array(select e.seq from unnest(due) as e (seq) order by e.seq);
    select j.made, j.held into routed, kept from /*schema*/make_jobs(p_subscription, due, p_queue, p_priority) as j;
    delete from /*schema*/delivery as d
    where d.subscription = p_subscription and d.seq = any (due) and d.seq <> all (kept);
    -- Not together with these: one that is still held would divide them.
    select routed + j.made, array(select e.seq from unnest(kept || j.held) as e (seq) order by e.seq) into routed, kept
    from /*schema*/make_jobs(p_subscription, seqs, p_queue, p_priority) as j;
    if kept <> '{}' then
        insert into /*schema*/delivery as d (
            subscription, generation, partition, seq, event_id, event_type, status, head, reached, run_at, workspace_id)
        select p_subscription, 0, place, o.seq, o.id, o.event_type, 'pending', true, true, clock_timestamp() + interval '1 second',
               o.workspace_id
        from /*schema*/outbox as o
        where o.seq = any (kept) and o.seq >= kept[1] and o.seq <= kept[cardinality(kept)]
        on conflict (subscription, seq) do update set run_at = excluded.run_at;
    end if;
    if outcome = 'done' and exists (
        select from /*schema*/delivery as d
        where d.subscription = p_subscription and d.generation = 0 and d.partition = place and d.status = 'pending'
          and d.head and d.reached) then
        outcome := 'more';  -- the next take says when to try again
    end if;
end
$$;
