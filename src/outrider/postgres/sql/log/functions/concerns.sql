-- concerns: whether an event concerns a subscription: by its type, its target, and for relays by origin and tenant.
-- The planner inlines it, so it must stay free of subqueries.
create or replace function /*schema*/concerns(p_event /*schema*/outbox, p_subscription /*schema*/subscription) returns boolean
    language sql stable
    return (p_subscription.event_types is null or p_event.event_type = any (p_subscription.event_types))
       and case p_subscription.kind
               when 'relay' then not starts_with(p_event.event_type, 'outrider.canary_')
                    and (p_subscription.forwards or p_event.origin is null)
                    and (p_subscription.workspace_id is null or p_event.workspace_id = p_subscription.workspace_id)
               else p_event.target is null or p_event.target = p_subscription.context end;
