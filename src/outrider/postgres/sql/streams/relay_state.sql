-- relay_state: where the streams of a relay end, and whether anything is owed or ahead.
-- Runs after the take, in a statement of its own: these change only under the cursor's lock, which the relay holds.
select coalesce((select jsonb_object_agg(s.name, s.position) from /*schema*/stream as s
                 where s.subscription = %(subscription)s), '{}')::text,
       -- Ordered: only the index on (subscription, seq) will do, whatever the statistics say.
       (select d.seq from /*schema*/delivery as d where d.subscription = %(subscription)s
        order by d.subscription, d.seq limit 1) is not null
       or exists (select from /*schema*/stream_ahead as a where a.subscription = %(subscription)s)
