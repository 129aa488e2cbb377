-- wanted: whether the reader of a cursor gets an event: the filter of every subscription.
-- p_others: the generations that have cursors of their own; generation 0 reads all others. p_withdrawn: false if the log has no
-- withdrawals that matter. The planner inlines it, so it must stay free of subqueries.
create or replace function /*schema*/wanted(
    p_event /*schema*/outbox, p_subscription /*schema*/subscription, p_cursor /*schema*/cursor, p_others bigint[],
    p_withdrawn boolean
) returns boolean
    language sql stable
    return (p_subscription.event_types is null or p_event.event_type = any (p_subscription.event_types))
       and case p_subscription.kind
               when 'relay' then not starts_with(p_event.event_type, 'outrider.canary_')
                    and (p_subscription.forwards or p_event.origin is null)
                    and (p_subscription.workspace_id is null or p_event.workspace_id = p_subscription.workspace_id)
               else p_event.target is null or p_event.target = p_subscription.context end
       and (p_subscription.partitions = 1
            or coalesce(hashtextextended(p_event.aggregate_id, 0), p_event.seq) & (p_subscription.partitions - 1)
               = p_cursor.partition)
       and case p_cursor.generation when 0 then p_event.generation <> all (p_others)
                                    else p_event.generation = p_cursor.generation end
       and not (p_withdrawn and /*schema*/is_withdrawn(p_event.seq));
