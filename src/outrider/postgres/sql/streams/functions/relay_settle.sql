-- relay_settle: store where the streams of a relay end, after its batch was sent and before the COMMIT.
--
-- p_sent: deliveries that were sent, and are deleted. p_passed: deliveries that stay; the cursor has passed them. p_found: events
-- that were ahead. p_done: everything published before has been read, so nothing can be ahead any more.
-- p_mark: also store a mark; while something is ahead, a mark would be too far back.
create or replace function /*schema*/relay_settle(
    p_subscription text, p_streams text[], p_positions text[], p_events bigint[], p_sent bigint[], p_passed bigint[],
    p_found uuid[], p_done boolean, p_mark boolean
) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
begin
    perform /*schema*/relay_only(p_subscription);
    update /*schema*/stream as s
    set position = moved.position, events = s.events + moved.events, moved_at = clock_timestamp()
    from unnest(p_streams, p_positions, p_events) as moved (name, position, events)
    where s.subscription = p_subscription and s.name = moved.name;
    if p_sent <> '{}' then
        with sent as (
            delete from /*schema*/delivery as d where d.id = any (p_sent) and d.subscription = p_subscription returning d.*
        )
        insert into /*schema*/stream_replayed (subscription, seq, event_id, event_type, payload, cycle, failure_history)
        select sent.subscription, sent.seq, sent.event_id, sent.event_type, sent.payload, sent.cycle, sent.failure_history
        from sent where sent.reached or sent.payload is not null;
    end if;
    if p_passed <> '{}' then
        update /*schema*/delivery as d set reached = true where d.id = any (p_passed) and d.subscription = p_subscription and not d.reached;
    end if;
    if p_done then
        delete from /*schema*/stream_ahead as a where a.subscription = p_subscription;
    elsif p_found <> '{}' then
        delete from /*schema*/stream_ahead as a where a.subscription = p_subscription and a.event_id = any (p_found);
    end if;
    if p_mark and not exists (select from /*schema*/stream_ahead as a where a.subscription = p_subscription) then
        perform /*schema*/relay_mark(p_subscription);
    end if;
end
$$;
