-- wanted: whether the reader of a cursor gets an event: the filter of every subscription.
-- p_others: the generations that have cursors of their own; generation 0 reads all others. p_withdrawn: false if the log has no
-- withdrawals that matter. The planner inlines it, so it must stay free of subqueries.
create or replace function /*schema*/wanted(
    p_event /*schema*/outbox, p_subscription /*schema*/subscription, p_cursor /*schema*/cursor, p_others bigint[],
    p_withdrawn boolean
) returns boolean
    language sql stable
    return /*schema*/concerns(p_event, p_subscription)
       and (p_subscription.partitions = 1
            or coalesce(hashtextextended(p_event.aggregate_id, 0), p_event.seq) & (p_subscription.partitions - 1)
               = p_cursor.partition)
       and case p_cursor.generation when 0 then p_event.generation <> all (p_others)
                                    else p_event.generation = p_cursor.generation end
       and not (p_withdrawn and /*schema*/is_withdrawn(p_event.seq));
