-- farewell: delete the row of a worker that stops in good order, and notify the workers that serve the same subscriptions.
-- They look again: a retry may be due at a time that only the stopped worker knew, and jobs of its generation may be theirs now.
with gone as (
    select g.id, g.subscriptions from /*schema*/forget_workers(%(id)s) as g
)
select count(/*schema*/notify(
    /*schema*/generation_channel(woken.generation), woken.kind))
from (select w.generation, wanted.kind
      from gone join /*schema*/worker as w on w.id <> gone.id and w.subscriptions && gone.subscriptions
      join /*schema*/subscription as s on s.name = any (gone.subscriptions) and s.name = any (w.subscriptions)
      cross join unnest(coalesce(s.event_types, array['']) || s.name) as wanted (kind)
      group by 1, 2) as woken
